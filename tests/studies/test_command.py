"""The command runs a study, continues it after kills, survives failing runs, and refuses what cannot work."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from configs.studies.base import fine_tuning, heldout_loss, probe, samples, throughput, tokens_to_loss, variant
from contract.errors import ConfigError
from studies.__main__ import main
from tests.studies.studies import on, small_fields, write_study
from tests.train.subprocesses import ROOT

_TIMES = ("seconds", "environment")


def _command(study, out, *arguments):
    return [sys.executable, "-m", "train.ablate", f"--study={study}", f"--out={out}", *arguments]


def _ablate(study, out, *arguments, timeout=240):
    return subprocess.run(
        _command(study, out, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def _outcomes(out):
    """The outcomes of a study's folder, without times and without the folder's own path."""
    found = {}
    for file in sorted((out / "outcomes").iterdir()):
        fields = json.loads(file.read_text().replace(str(out), "OUT"))
        found[file.stem] = {name: value for name, value in fields.items() if name not in _TIMES}
        found[file.stem]["values"].pop("speed", None)
    return found


def _all_measures(corpus):
    labelled = on(corpus) | {"data.source": "jsonl", "data.path": str(corpus / "labelled.jsonl")}
    fine_tuned = labelled | {"objective.classes": ("a", "b"), "train.steps": 2, "optimizer.warmup_steps": 1}
    return {
        "loss": heldout_loss(),
        "under_prefix_lm": heldout_loss(config="configs/prefix_lm.py", overrides={"data.inputs_length": 32}),
        "continuation": probe("continuation", "bits_per_byte", num_documents=2, places=1),
        "accuracy": fine_tuning("accuracy", overrides=fine_tuned),
        "speed": throughput(),
        "reached": tokens_to_loss(100.0),
        "not_reached": tokens_to_loss(0.01),
        "text": samples("def f("),
    }


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A study with every kind of measure: its file, its folder and what the command printed."""
    folder = tmp_path_factory.mktemp("study")
    study = write_study(folder / "every_measure.py", small_fields(corpus, measures=_all_measures(corpus)))
    done = _ablate(study, folder / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    return study, folder / "out", done.stdout


def test_a_study_leaves_an_outcome_for_each_run(finished):
    _, out, printed = finished
    outcomes = _outcomes(out)
    assert list(outcomes) == ["fast-seed0", "fast-seed1", "slow-seed0", "slow-seed1"]
    first = outcomes["slow-seed0"]
    assert set(first["values"]) == {"loss", "under_prefix_lm", "continuation", "accuracy", "reached"}
    assert first["values"]["reached"] == first["curve"]["raw_tokens"][0]
    assert first["samples"]["text"]["def f("].startswith("def f(")
    assert first["raw_tokens"] == 512 and first["curve"]["raw_tokens"][-1] == 512
    assert first["values"]["loss"] == first["curve"]["loss"][-1] != outcomes["slow-seed1"]["values"]["loss"]
    assert "slow-seed0: done" in printed and (out / "report.md").exists() and (out / "report.html").exists()


def test_the_command_of_an_outcome_repeats_the_run(finished, tmp_path):
    _, out, _ = finished
    command = json.loads((out / "outcomes" / "fast-seed1.json").read_text())["commands"][0]
    workdir = str(out / "runs" / "fast-seed1")
    assert workdir in command
    repeated = command.replace(workdir, str(tmp_path / "again"))
    subprocess.run(
        repeated.replace("python", sys.executable, 1),
        shell=True,
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )

    def losses(folder):
        lines = map(json.loads, (pathlib.Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [(line["step"], line["split"], line["loss"]) for line in lines]

    assert losses(tmp_path / "again") == losses(workdir)


def test_a_finished_study_repeats_nothing(finished):
    study, out, _ = finished
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}
    again = _ablate(study, out)
    assert again.returncode == 0 and again.stdout.count("complete already") == 4
    assert before == {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}


def test_another_study_in_the_folder_is_refused(finished, tmp_path, monkeypatch):
    study, out, _ = finished
    (tmp_path / "notes.txt").write_text("mine")
    for folder, arguments, message in [
        (out, ["--config.optimizer.b2=0.9"], "has another study than"),
        (out, ["--budget=1024"], "budget is"),
        (tmp_path, [], "has other files and no study"),
    ]:
        monkeypatch.setattr(sys, "argv", _command(study, folder, *arguments)[2:])
        with pytest.raises(ConfigError, match=message):
            main()


def test_damaged_outcomes_are_named_when_reporting(finished, tmp_path):
    study, out, _ = finished
    copy = tmp_path / "copy"
    for name in ("outcomes", "failures", "runs"):
        (copy / name).mkdir(parents=True)
    (copy / "study.json").write_bytes((out / "study.json").read_bytes())
    (copy / "outcomes" / "slow-seed0.json").write_text("{")
    (copy / "outcomes" / "fast-seed0.json").write_bytes((out / "outcomes" / "fast-seed0.json").read_bytes())
    reported = _ablate(study, copy, "--report")
    assert reported.returncode == 0, reported.stderr
    assert "slow, seed 0: damaged: " in reported.stderr
    text = (copy / "report.md").read_text()
    assert "damaged" in text and "missing" in text


def test_a_damaged_outcome_does_not_stop_the_other_runs(finished, tmp_path, monkeypatch, capsys):
    study, out, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("compiled", "checkpoints"))
    (copy / "outcomes" / "slow-seed0.json").write_text("{")
    monkeypatch.setattr(sys, "argv", _command(study, copy)[2:])
    with pytest.raises(ConfigError, match="1 runs failed"):
        main()
    printed = capsys.readouterr()
    assert printed.out.count("complete already") == 3 and "slow-seed0: damaged: " in printed.out
    assert "slow, seed 0: damaged: " in printed.err


def test_a_killed_study_ends_with_the_same_outcomes(finished, tmp_path):
    study, out, _ = finished
    rng = random.Random(0)
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(
            _command(study, tmp_path / "out"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(8 + 6 * rng.random())
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
        if number == signal.SIGTERM and process.returncode == 1:
            assert "stopped by a signal: run the same command again" in stderr
        else:  # a signal that arrives while the command's modules are imported has its usual effect
            assert process.returncode in (0, -number)
    done = _ablate(study, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _outcomes(tmp_path / "out") == _outcomes(out)


def test_a_failed_run_is_reported_and_does_not_stop_the_others(corpus, tmp_path):
    # Steps that grow without bound make the loss infinite.
    variants = {
        "slow": variant(),
        "diverges": variant({"optimizer.learning_rate": 1e30, "train.max_nonfinite_updates": 1}),
    }
    study = write_study(tmp_path / "fails.py", small_fields(corpus, variants=variants))
    done = _ablate(study, tmp_path / "out")
    assert done.returncode == 1
    for seed in (0, 1):
        assert f"diverges, seed {seed}: failed: stopped at step" in done.stderr
    assert "error: 2 runs failed: run the same command again to try them again" in done.stderr
    assert list(_outcomes(tmp_path / "out")) == ["slow-seed0", "slow-seed1"]


def test_a_sweep_chooses_the_best_value_and_survives_one_that_diverges(corpus, tmp_path):
    rates = [1e-4, 1e-2, 1e30]
    swept = variant({"train.max_nonfinite_updates": 1}, sweep={"optimizer.learning_rate": rates})
    fields = small_fields(corpus, variants={"slow": variant(), "swept": swept}, seeds=1)
    done = _ablate(write_study(tmp_path / "sweeps.py", fields), tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = _outcomes(tmp_path / "out")
    scores = [outcomes[f"swept-learning_rate={rate}"]["values"]["loss"] for rate in rates[:2]]
    chosen = rates[scores.index(min(scores))]
    assert outcomes["swept-seed0"]["swept"] == {"optimizer.learning_rate": chosen}
    assert f"--config.optimizer.learning_rate={chosen}" in outcomes["swept-seed0"]["commands"][0]


def test_a_dry_run_prints_the_plan_and_leaves_nothing(corpus, tmp_path):
    study = write_study(tmp_path / "small.py", small_fields(corpus))
    dry = _ablate(study, tmp_path / "out", "--dry_run", "--worker=1/2")
    assert dry.returncode == 0, dry.stderr
    assert "2 variants x 2 seeds, 512 raw_tokens each" in dry.stdout and "of training steps on cpu" in dry.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--worker=2/2"], "--worker=2/2 is out of range"),
        (["--report"], "is not the folder of a study"),
        (["--seeds=0"], "--seeds=0 must be 1 or more"),
        (["--config.train.steps=3"], "train.steps cannot be overridden"),
        (["--config.nope=3"], "unknown config field in --config.nope=3"),
        (["--config.seed", "3"], "write it as --config.seed=value"),
        (["--dry_run", "--report"], "exclude each other"),
    ],
)
def test_a_command_that_cannot_work_is_refused_in_one_line(arguments, message, corpus, tmp_path, monkeypatch):
    measures = {"loss": heldout_loss(), "speed": throughput()}
    study = write_study(tmp_path / "small.py", small_fields(corpus, measures=measures))
    monkeypatch.setattr(sys, "argv", _command(study, tmp_path / "out", *arguments)[2:])
    with pytest.raises(ConfigError) as error:
        main()
    assert message in str(error.value) and "\n" not in str(error.value) and not (tmp_path / "out").exists()
