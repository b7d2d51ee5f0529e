"""A run whose checkpoints are gone is not started over in silence; one that never had a checkpoint is."""

import io
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from rich.console import Console
from workdir.lost_checkpoints import (
    RECORD,
    check_not_lost,
    has_metrics,
    remove_stale_record,
    write_record,
)

import cloze
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from tests.table import reads_corpus, small_config
from tests.train.subprocesses import run_main
from train.loop import train_and_evaluate
from train.recorder import Recorder
from train.start import open_checkpoints
from workdir.checkpoint import Checkpoints
from workdir.metrics import read_metrics
from workdir.run_config import read_config, write_config

TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}
STEPS = 4


class KilledError(Exception):
    """In place of a kill."""


@pytest.fixture(scope="module")
def config_of(corpus):
    def config_of(**overrides):
        fields = {"train__steps": STEPS, "train__checkpoint_every": 2, "train__eval_every": 4, "train__trackers": ()}
        return small_config("clm", "decoder_only", **fields | reads_corpus("clm", corpus) | overrides)

    return config_of


@pytest.fixture(scope="module")
def train(config_of):
    def train(workdir, *, start_anew=False, **overrides):
        experiment, console = make_experiment(config_of(**overrides)), Console(file=io.StringIO(), width=200)
        assert train_and_evaluate(experiment, str(workdir), console=console, start_anew=start_anew)
        return console.file.getvalue()

    return train


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("finished") / "run"
    train(workdir)
    return workdir


@pytest.fixture
def run(finished, tmp_path) -> pathlib.Path:
    """A copy of the finished run."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


def lines_of(workdir):
    return [{name: value for name, value in line.items() if name not in TIMED} for line in read_metrics(workdir)]


def files_of(workdir):
    return {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}


def killed_run(train, workdir, monkeypatch, *, at_step, **overrides):
    """Leaves what a run leaves that is killed after the metrics of a step before its first save."""

    def report(recorder, step, values, now):
        if step > at_step:
            raise KilledError
        original(recorder, step, values, now)

    original = Recorder.report
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "report", report)
        with pytest.raises(KilledError):
            train(workdir, **overrides)
    assert [line["step"] for line in read_metrics(workdir)] == list(range(1, at_step + 1))
    assert os.listdir(workdir / "checkpoints") == [] and not (workdir / RECORD).exists()


def empty(folder):
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True)  # Orbax may delete a temporary folder at the same moment
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(("lose", "reason"), [(shutil.rmtree, "does not exist"), (empty, "has no checkpoint any more")])
def test_a_run_whose_checkpoints_are_gone_is_refused_each_time_and_stays_as_it_is(train, run, lose, reason, seed):
    lose(run / "checkpoints")
    before = files_of(run)
    message = rf"contains a run with metrics up to step 4, but .*checkpoints {reason}: put back .* --start_anew=True$"
    for _ in range(2):
        with pytest.raises(ConfigError, match=message) as error:
            train(run, seed=seed)
        assert "\n" not in str(error.value) and files_of(run) == before


def test_start_anew_discards_a_run_without_checkpoints_and_no_other(train, run, finished):
    with pytest.raises(ConfigError, match=r"^--start_anew=True: .* has a checkpoint of step 4: remove the flag"):
        train(run, start_anew=True)
    assert lines_of(run) == lines_of(finished)
    empty(run / "checkpoints")
    train(run, start_anew=True, seed=5)
    assert read_config(run)["seed"] == 5 and [line["step"] for line in read_metrics(run, "train")] == [1, 2, 3, 4]
    assert lines_of(run)[0]["loss"] != lines_of(finished)[0]["loss"]
    assert "continuing from step 4" in train(run, seed=5)


def test_the_command_and_the_python_function_have_the_choice(run, config_of):
    status, stdout, stderr = run_main("--start_anew", f"--workdir={run}")
    assert status == 1 and stdout == "" and stderr.startswith("error: --start_anew=True: --workdir=")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match=r"^workdir=.* or start from step 0 with start_anew=True$"):
        cloze.train(config_of(), run)


def test_a_run_killed_before_its_first_checkpoint_continues_with_the_same_command(
    train, finished, tmp_path, monkeypatch
):
    killed_run(train, tmp_path, monkeypatch, at_step=1)
    with pytest.raises(ConfigError, match=r"\(seed: 0 -> 5\): .* or discard its metrics with --start_anew=True$"):
        train(tmp_path, seed=5)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1] and read_config(tmp_path)["seed"] == 0
    train(tmp_path, train__log_every=1)
    assert lines_of(tmp_path) == lines_of(finished)


def test_another_config_starts_anew_over_metrics_only_where_that_is_said(train, tmp_path, monkeypatch):
    killed_run(train, tmp_path, monkeypatch, at_step=1)
    killed_run(train, tmp_path, monkeypatch, at_step=1, seed=5, start_anew=True)
    assert read_config(tmp_path)["seed"] == 5


def test_a_run_that_failed_before_its_first_metrics_may_have_another_config(train, tmp_path, config_of):
    write_config(tmp_path, make_experiment(config_of(model__d_ff=64)).config)
    (tmp_path / "metrics.jsonl").write_text("")
    train(tmp_path)
    assert read_config(tmp_path)["model"]["d_ff"] == 48


def test_the_record_is_written_between_the_contents_of_the_first_checkpoint_and_its_name(tmp_path):
    seen = []

    def before_commit(step):
        seen.append((step, sorted(os.listdir(tmp_path / "checkpoints"))))

    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, before_commit=before_commit)
    for step in (3, 5):
        checkpoints.save(step, {"a": np.arange(3)})
    checkpoints.close()
    (first, names), (second, later_names) = seen
    assert (first, second) == (3, 5)
    [name] = names
    assert name.startswith("3.") and "3" in later_names and any(name.startswith("5.") for name in later_names)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["3", "5"]


def test_a_kill_between_the_record_and_the_checkpoint_is_no_loss(tmp_path):
    """The temporary folder of the recorded step is the difference. Orbax deletes it some time after the start."""
    workdir = str(tmp_path)
    write_config(workdir, {"seed": 0})
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "split": "train"}\n')
    (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp").mkdir(parents=True)
    write_record(workdir, 2)
    check_not_lost(workdir, start_anew=False)
    open_checkpoints(workdir, keep=1).close()
    assert not (tmp_path / RECORD).exists()
    empty(tmp_path / "checkpoints")
    check_not_lost(workdir, start_anew=False)  # so a further kill here is no loss either
    write_record(workdir, 2)
    with pytest.raises(ConfigError, match="has no checkpoint any more"):
        check_not_lost(workdir, start_anew=False)
    (tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir()  # of a later save
    with pytest.raises(ConfigError, match="has no checkpoint any more"):
        check_not_lost(workdir, start_anew=False)
    (tmp_path / "checkpoints" / "6").mkdir()
    remove_stale_record(workdir)
    assert (tmp_path / RECORD).exists()


def test_a_run_has_its_record_and_one_of_an_earlier_version_gets_it(train, run):
    assert json.loads((run / RECORD).read_text()) == {"step": 2}
    (run / RECORD).unlink()
    train(run)
    assert json.loads((run / RECORD).read_text()) == {"step": 4}


@pytest.mark.parametrize(("last_step", "is_lost"), [(2, False), (3, True)])
def test_without_a_record_the_metrics_of_an_earlier_version_say_whether_it_had_a_checkpoint(run, last_step, is_lost):
    """Its first save is at step 2. A later line without the remains of a save means that there was a checkpoint."""
    config = json.loads((run / "config.json").read_text())
    del config["version"]
    (run / "config.json").write_text(json.dumps(config))
    (run / RECORD).unlink()
    lines = [line for line in read_metrics(run, "train") if line["step"] <= last_step]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    empty(run / "checkpoints")
    if is_lost:
        with pytest.raises(ConfigError, match=r"up to step 3, but .* has no checkpoint any more"):
            check_not_lost(str(run), start_anew=False)
        (run / "checkpoints" / "2.orbax-checkpoint-tmp").mkdir()
    check_not_lost(str(run), start_anew=False)


def test_a_finished_run_of_an_earlier_version_has_had_a_checkpoint(run):
    """Its only save was at its end."""
    config = json.loads((run / "config.json").read_text())
    del config["version"]
    config["train"]["checkpoint_every"] = 1000
    (run / "config.json").write_text(json.dumps(config))
    (run / RECORD).unlink()
    empty(run / "checkpoints")
    with pytest.raises(ConfigError, match=r"up to step 4, but .* has no checkpoint any more"):
        check_not_lost(str(run), start_anew=False)


def test_metrics_without_a_config_are_refused(tmp_path):
    assert not has_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "split": "train"}\n')
    (tmp_path / "checkpoints").mkdir()
    assert has_metrics(tmp_path)
    with pytest.raises(ConfigError, match=r"up to step 2, but .*config\.json does not exist"):
        check_not_lost(str(tmp_path), start_anew=False)
    check_not_lost(str(tmp_path), start_anew=True)
