"""The command runs a study, continues it after kills, survives failing runs, and refuses what cannot work."""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from configs.studies.base import fine_tuning, heldout_loss, probe, samples, throughput, tokens_to_loss, variant
from contract.errors import ConfigError
from studies import jobs
from studies.__main__ import main
from studies.jobs import chosen_values, do_job
from studies.measures import Trained, finished_lines, make_measure
from studies.plan import Job, make_plan
from studies.results import Outcome, StudyFolder
from tests.studies.studies import on, small_fields, small_study, write_study
from tests.train.subprocesses import ROOT
from train import main as train_main
from train.recorder import DivergedError
from workdir.workdir import Workdir

RATE = "optimizer.learning_rate"


def in_this_process(job, plan, folder, signals):
    """Does a job as `jobs.in_a_process` does, without the seconds that a process takes to start."""
    try:
        return 0 if do_job(job, plan, folder) else 75
    except ConfigError as error:
        status = 77 if isinstance(error, DivergedError) else 1
        folder.write(job, jobs._failed(job, status, f"error: {error}", "a log"))
        return status


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(jobs, "in_a_process", in_this_process)
    monkeypatch.setattr("studies.__main__.jax.config.update", lambda *_: None)


def run_command(monkeypatch, study, out, *arguments):
    monkeypatch.setattr(sys, "argv", ["train.ablate", f"--study={study}", f"--out={out}", *arguments])
    main()


def outcomes_of(out):
    """The outcomes of a study's folder, without times and without the folder's own path."""
    found = {}
    for file in sorted((out / "outcomes").iterdir()):
        fields = json.loads(file.read_text().replace(str(out), "OUT"))
        found[file.stem] = {name: value for name, value in fields.items() if name not in ("seconds", "environment")}
        found[file.stem]["values"].pop("speed", None)
    return found


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A study with every kind of measure: its file and its folder."""
    labelled = on(corpus) | {"data.source": "jsonl", "data.path": str(corpus / "labelled.jsonl")}
    fine_tuned = labelled | {"objective.classes": ("a", "b"), "train.steps": 2, "optimizer.warmup_steps": 1}
    measures = {
        "loss": heldout_loss(),
        "under_prefix_lm": heldout_loss(config="configs/prefix_lm.py", overrides={"data.inputs_length": 32}),
        "continuation": probe("continuation", "bits_per_byte", num_documents=2, places=1),
        "accuracy": fine_tuning("accuracy", overrides=fine_tuned),
        "macro_f1": fine_tuning("macro_f1", overrides=fine_tuned),
        "speed": throughput(),
        "reached": tokens_to_loss(100.0),
        "not_reached": tokens_to_loss(0.01),
        "text": samples("def f("),
    }
    folder = tmp_path_factory.mktemp("study")
    study = write_study(folder / "every_measure.py", small_fields(corpus, measures=measures))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_a_process", in_this_process)
        patch.setattr("studies.__main__.jax.config.update", lambda *_: None)
        run_command(patch, study, folder / "out")
    return study, folder / "out"


def test_a_study_leaves_an_outcome_for_each_run_and_a_report(finished):
    _, out = finished
    outcomes = outcomes_of(out)
    assert list(outcomes) == ["fast-seed0", "fast-seed1", "slow-seed0", "slow-seed1"]
    first = outcomes["slow-seed0"]
    assert set(first["values"]) == {"loss", "under_prefix_lm", "continuation", "accuracy", "macro_f1", "reached"}
    assert first["values"]["reached"] == first["curve"]["raw_tokens"][0]
    assert first["samples"]["text"]["def f("].startswith("def f(")
    assert first["raw_tokens"] == 512 and first["curve"]["raw_tokens"][-1] == 512
    assert first["values"]["loss"] == first["curve"]["loss"][-1] != outcomes["slow-seed1"]["values"]["loss"]
    runs = {path.name for path in (out / "runs").iterdir() if path.is_dir()}
    assert runs == {f"{run}{suffix}" for run in outcomes for suffix in ("", "-accuracy")}  # macro_f1 shares the run
    report = (out / "report.md").read_text()
    for name in ("loss", "not_reached", "speed", "curves"):
        assert (out / "figures" / f"{name}.svg").exists() == (name != "not_reached")
    assert "prompt: def f(" in report and "not_reached" in report


def test_the_command_of_an_outcome_repeats_the_run(finished, tmp_path, monkeypatch):
    _, out = finished
    command = json.loads((out / "outcomes" / "fast-seed1.json").read_text())["commands"][0]
    run = out / "runs" / "fast-seed1"
    monkeypatch.setattr(sys, "argv", shlex.split(command.replace(str(run), str(tmp_path)))[2:])
    train_main.main()

    def losses(folder):
        return [(line["step"], line["split"], line["loss"]) for line in Workdir(folder).metrics()]

    assert len(losses(run)) > 4 and losses(tmp_path) == losses(run)


def test_a_finished_study_repeats_nothing(finished, quick, monkeypatch, capsys):
    study, out = finished
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}
    run_command(monkeypatch, study, out)
    assert "4 of 4 runs are complete already" in capsys.readouterr().out
    assert before == {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.optimizer.b2=0.9"], "has another study than .* runs.slow.main.optimizer.b2 is 0.98 there and 0.9"),
        (["--budget=1024"], "budget is"),
        (["--worker=2/2"], "--worker=2/2 must be i/n"),
        (["--worker=²/4"], "--worker=²/4 must be i/n"),
        (["--worker=4/5"], "--worker=4/5 has nothing to do: use at most 4 workers"),
        (["--report", "--out=nowhere"], "nowhere is not the folder of a study"),
        (["--out=configs"], "has other files and no study"),
        (["--seeds=0"], "--seeds=0 must be 1 or more"),
        (["--config.train.steps=3"], "train.steps cannot be overridden"),
        (["--config.nope=3"], "unknown config field in --config.nope=3"),
        (["--config.seed", "3"], "write it as --config.seed=value"),
        (["--dry_run", "--report"], "exclude each other"),
    ],
)
def test_a_command_that_cannot_work_is_refused_in_one_line(arguments, message, finished, monkeypatch):
    study, out = finished
    where = [] if any(argument.startswith("--out") for argument in arguments) else [f"--out={out}"]
    monkeypatch.setattr(sys, "argv", ["train.ablate", f"--study={study}", *where, *arguments])
    with pytest.raises(ConfigError, match=message) as error:
        main()
    assert "\n" not in str(error.value) and not pathlib.Path("nowhere").exists()
