"""A run that is killed or stopped and then started again equals an uninterrupted run."""

import io
import json
import shutil
import signal
import sys

import pytest
from rich.console import Console

from contract.errors import ConfigError
from evaluation import __main__ as evaluate
from experiment.experiment import make_experiment
from tests.in_process import run_here
from tests.table import reads_corpus, small_config
from tests.train.small_runs import array_checksums, files_of
from train import main
from train.loop import train_and_evaluate
from workdir.metrics import MetricsWriter
from workdir.workdir import FIRST_CHECKPOINT_MARKER, Workdir

STEPS = 24
TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}
FIELDS = {
    "train.steps": STEPS,
    "train.log_every": 1,
    "train.eval_every": 12,
    "train.checkpoint_every": 6,
    "train.keep_checkpoints": 5,
    "train.grad_accum_steps": 2,
    "train.ema_decay": 0.9,
    "train.trackers": (),
    "model.dropout_rate": 0.1,
}


@pytest.fixture(scope="module")
def config(corpus):
    def config(**changes):
        fields = {name.replace(".", "__"): value for name, value in (FIELDS | changes).items()}
        return small_config("ul2", "decoder_only", **fields | reads_corpus("ul2", corpus))

    return config


@pytest.fixture(scope="module")
def train(config):
    def train(workdir, **changes):
        console = Console(file=io.StringIO(), width=1000)
        assert train_and_evaluate(make_experiment(config(**changes)), workdir, console=console)
        return console.file.getvalue()

    return train


@pytest.fixture(scope="module")
def uninterrupted(train, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    train(workdir)
    return workdir


@pytest.fixture
def copy(uninterrupted, tmp_path):
    return shutil.copytree(uninterrupted, tmp_path / "run")


@pytest.fixture(scope="module")
def arguments(corpus):
    data = {"data.path": corpus / "text", "data.cache_dir": corpus / "cache"}
    overrides = (f"--config.{name}={value}" for name, value in (FIELDS | data).items())
    return ["--config=tests/small_config.py:ul2,decoder_only", *overrides]


def metrics_of(workdir):
    return [{key: value for key, value in line.items() if key not in TIMED} for line in Workdir(workdir).metrics()]


def assert_same_run(workdir, uninterrupted):
    assert metrics_of(workdir) == metrics_of(uninterrupted)
    seconds = [line["seconds"] for line in Workdir(workdir).metrics()]
    assert seconds[0] >= 0 and seconds == sorted(seconds) and seconds[-1] > seconds[0], "they go on after a resume"
    assert array_checksums(workdir, STEPS) == array_checksums(uninterrupted, STEPS)


def test_a_run_stopped_by_a_signal_saves_and_prints_how_to_continue(
    arguments, uninterrupted, train, tmp_path, monkeypatch
):
    """tests/cluster/test_processes.py signals a process of its own, and tests/test_torture.py kills processes."""
    workdir, write = tmp_path / "run", MetricsWriter.write

    def write_and_signal(self, step, *line):
        write(self, step, *line)
        if step == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsWriter, "write", write_and_signal)
        status, stdout, stderr = run_here(main.main, *arguments, f"--workdir={workdir}")
    assert (status, stderr) == (0, "")
    assert "WARNING: SIGTERM: saving a checkpoint, then stopping" in stdout
    assert "its checkpoint is saved. To continue, run the same command again." in stdout
    stopped = int(stdout.split("stopped at step ")[1].split(";")[0])
    assert 4 <= stopped < STEPS and (workdir / "checkpoints" / str(stopped)).is_dir()
    assert f"continuing from step {stopped}" in train(workdir)
    assert_same_run(workdir, uninterrupted)


def test_starting_a_finished_run_again_changes_nothing(train, uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    assert f"done: {STEPS} steps" in train(uninterrupted)
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)


def damage(workdir, *steps):
    for step in steps:
        flip(workdir / "checkpoints" / str(step) / "record" / "record.json")


def test_a_run_continues_from_the_newest_intact_checkpoint(copy, train, uninterrupted):
    damage(copy, 24, 18)
    printed = train(copy)
    warnings = [line for line in printed.splitlines() if "damaged" in line]
    for step, warning in zip((24, 18), warnings, strict=True):
        assert f"checkpoint {copy}/checkpoints/{step} is damaged (" in warning
        assert warning.endswith(f"it is now named damaged-{step}, and the run continues from step 12")
    assert "continuing from step 12" in printed
    assert {path.name for path in (copy / "checkpoints").iterdir()} >= {"12", "18", "24", "damaged-18", "damaged-24"}
    assert_same_run(copy, uninterrupted)
    assert "damaged" not in train(copy)


def test_without_an_intact_checkpoint_the_run_is_refused_and_nothing_changes(copy, train):
    damage(copy, *Workdir(copy).steps())
    before = files_of(copy)
    with pytest.raises(
        ConfigError, match=r"all checkpoints of .* damaged, steps \[6, .* 24\] \(of step 24: .*\): "
    ) as e:
        train(copy)
    assert "\n" not in str(e.value)
    assert files_of(copy) == before


def test_a_run_that_has_lost_its_checkpoints_is_refused(copy, train):
    shutil.rmtree(copy / "checkpoints")
    before = files_of(copy)
    with pytest.raises(ConfigError, match=r"contains a run, but .* has no checkpoint any more: "):
        train(copy)
    assert files_of(copy) == before


def test_a_run_killed_before_its_first_checkpoint_does_not_start_again_with_another_config(copy, train):
    shutil.rmtree(copy / "checkpoints")
    (copy / FIRST_CHECKPOINT_MARKER).unlink()
    with pytest.raises(ConfigError, match=r"\(seed: 0 -> 5\): "):
        train(copy, seed=5)


def test_evaluate_prints_the_metrics_that_the_run_logged(uninterrupted, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.evaluate", f"--workdir={uninterrupted}"])
    evaluate.main()
    printed, config = json.loads(capsys.readouterr().out), Workdir(uninterrupted).config()
    assert printed.pop("heldout_digest") == config["corpus"]["heldout"]
    assert printed.pop("ema_decay") == config["train"]["ema_decay"]
    logged = [line for line in metrics_of(uninterrupted) if line["split"] == "eval"][-1]
    totals = {"examples", "raw_tokens", "scored_tokens", "flops"}
    assert printed.keys() == logged.keys() - totals and printed["step"] == STEPS
    for name in printed.keys() - {"split"}:
        assert printed[name] == pytest.approx(logged[name], rel=1e-6), name
