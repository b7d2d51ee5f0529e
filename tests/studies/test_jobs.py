"""The command runs a study, continues it after kills, survives failing runs, and refuses what cannot work."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
import zipfile

import pytest

from configs.studies.base import (
    fine_tuning,
    heldout_loss,
    probe,
    raw_tokens,
    stage,
    success_rate,
    throughput,
    variant,
)
from contract.errors import ConfigError, Stopped
from evaluation import __main__ as evaluate_main
from studies import jobs, results
from studies.__main__ import main
from studies.analysis import analyse
from studies.board import read_study
from studies.jobs import chosen_values, do_job
from studies.measures import finished_lines, make_measure
from studies.plan import Job, jobs_of, with_fields
from studies.planning import make_plan
from studies.results import Outcome, StudyFolder, digest_of, source_files
from studies.study import load_study
from tests.studies.studies import on, small_fields, small_study, write_study
from tests.train.subprocesses import ROOT
from train import main as train_main
from train.recorder import DivergedError, Recorder
from workdir.workdir import Workdir

RATE = "optimizer.learning_rate"


def in_this_process(job, plan, folder, signals):
    """Does a job as `jobs.in_a_process` does, without the seconds that a process takes to start."""
    try:
        return 0 if do_job(job, plan, folder) else 75
    except ConfigError as error:
        status = 77 if isinstance(error, DivergedError) else 1
        folder.write(job, jobs._failed(job, plan, status, f"error: {error}", "a log"))
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
    folder = tmp_path_factory.mktemp("study")
    labelled = on(corpus) | {"data.source": "jsonl", "data.path": str(corpus / "labelled.jsonl")}
    fine_tuned = labelled | {"objective.classes": ("a", "b"), "train.steps": 2, "optimizer.warmup_steps": 1}
    as_prefix_lm = {"data.inputs_length": 32, "train.eval_windows": 8}
    measures = {
        "loss": heldout_loss(),
        "under_prefix_lm": heldout_loss(config="configs/prefix_lm.py", overrides=as_prefix_lm),
        "continuation": probe("continuation", "bits_per_byte", num_documents=2, windows_per_document=1),
        "accuracy": fine_tuning("accuracy", overrides=fine_tuned),
        "macro_f1": fine_tuning("macro_f1", overrides=fine_tuned),
        "pairs": probe("minimal_pairs", "accuracy", path=str(folder / "pairs.jsonl")),
        "speed": throughput(),
    }
    (folder / "pairs.jsonl").write_text('{"good": "She sleeps.", "bad": "She sleep."}')
    study = write_study(folder / "every_measure.py", small_fields(corpus, measures=measures))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_a_process", in_this_process)
        patch.setattr("studies.__main__.jax.config.update", lambda *_: None)
        run_command(patch, study, folder / "out")
    return study, folder / "out"


@pytest.fixture(scope="module")
def plan(finished):
    study, _ = finished
    return make_plan(load_study(str(study)), {})


def test_a_study_leaves_an_outcome_for_each_run_and_a_report(finished):
    _, out = finished
    outcomes = outcomes_of(out)
    scratch = ["no_pretraining-seed0", "no_pretraining-seed1"]
    assert list(outcomes) == ["fast-seed0", "fast-seed1", *scratch, "slow-seed0", "slow-seed1"]
    first = outcomes["slow-seed0"]
    assert set(first["values"]) == {"loss", "under_prefix_lm", "continuation", "accuracy", "macro_f1", "pairs"}
    assert first["raw_tokens"] == 512 and first["curve"]["raw_tokens"][-1] == 512
    assert first["values"]["loss"] == first["curve"]["loss"][-1] != outcomes["slow-seed1"]["values"]["loss"]
    runs = {path.name for path in (out / "runs").iterdir() if path.is_dir()}
    expected = {f"{run}{suffix}" for run in outcomes for suffix in ("", "-accuracy")}  # macro_f1 shares the run
    assert runs == expected - set(scratch)
    assert all((out / "figures" / f"{name}.svg").exists() for name in ("loss", "speed", "curves"))
    assert "`under_prefix_lm`" in (out / "report.md").read_text()


def test_an_outcome_has_floors_and_margins(finished):
    _, out = finished
    outcomes = outcomes_of(out)
    first, last = outcomes["slow-seed0"], Workdir(out / "runs" / "slow-seed0").metrics("eval")[-1]
    assert first["margins"]["loss"] == last["loss_stderr"] and first["margins"]["accuracy"] > 0
    assert first["margins"].keys() == {"loss", "under_prefix_lm", "continuation", "accuracy"}
    # Of losses, CLM's own has floors.
    assert first["floors"].keys() == {"loss", "continuation", "accuracy", "macro_f1", "pairs"}
    assert first["floors"]["loss"]["trigram"] < first["floors"]["loss"]["unigram"] < first["values"]["loss"]
    assert first["floors"]["continuation"].keys() == {"unigram", "trigram"}
    assert first["floors"]["accuracy"].keys() == {"majority class"}
    assert first["floors"]["macro_f1"].keys() == {"class frequencies"}
    assert first["floors"] == outcomes["fast-seed1"]["floors"]  # they depend on the text alone


def test_the_board_reads_a_folder_without_its_runs_as_the_report_does(finished, tmp_path):
    study, out = finished
    kept = tmp_path / "kept"
    shutil.copytree(out / "outcomes", kept / "outcomes")
    shutil.copy(out / "study.json", kept)
    there = StudyFolder(out).study_file()
    of_plan = StudyFolder(out).results(make_plan(load_study(str(study)), there.overrides), "", there.overrides)
    read = read_study(str(kept))
    for field in ("outcomes", "problems", "sweeps", "confounders", "scratch", "scratch_of"):
        assert getattr(read, field) == getattr(of_plan, field), field
    assert len(read.outcomes) == 4 and len(read.scratch) == 2
    assert "no pre-training" in {floor for found in analyse(read) for floor in found.floors}


def test_fine_tunings_without_pretraining_are_outcomes_of_their_own(finished):
    _, out = finished
    outcomes, folder = outcomes_of(out), StudyFolder(out)
    scratch = outcomes["no_pretraining-seed1"]
    assert scratch["values"].keys() == {"accuracy", "macro_f1"} and scratch["curve"]["loss"] == []
    of_accuracy = {"accuracy", "macro_f1"}
    assert {name: scratch["floors"][name] for name in of_accuracy} == {
        name: outcomes["slow-seed1"]["floors"][name] for name in of_accuracy
    }
    config, tuned = (folder.workdir(f"{name}-seed1-accuracy").config() for name in ("no_pretraining", "slow"))
    assert config["seed"] == tuned["seed"] == 1 and config["model"] == tuned["model"]
    assert config["data"] == tuned["data"] and config["optimizer"] == tuned["optimizer"]
    assert config["train"].pop("init_from") == "" != tuned["train"].pop("init_from")
    assert config["train"] == tuned["train"]
    [command] = scratch["commands"]
    assert "init_from" not in command and "--config.seed=1" in command


def test_the_curve_of_a_run_begins_after_its_start():
    """A run with train.init_from is evaluated before its first update too, where its own FLOPs are 0."""
    totals = dict.fromkeys(jobs.TOTALS, 5)
    losses = {0: 9.0, 1: None, 2: 1.0}
    lines = [totals | {"step": step, "raw_tokens": step, "loss": loss} for step, loss in losses.items()]
    trained = types.SimpleNamespace(before=totals, lines=lines)
    found = jobs._training(types.SimpleNamespace(num_params=7, steps=2), trained)
    assert (found["curve"].loss, found["curve"].raw_tokens, found["raw_tokens"]) == ([1.0], [7], 7)


def test_the_command_of_an_outcome_repeats_the_run(finished, tmp_path, monkeypatch):
    _, out = finished
    command = json.loads((out / "outcomes" / "fast-seed1.json").read_text())["commands"][0]
    run = out / "runs" / "fast-seed1"
    monkeypatch.setattr(sys, "argv", shlex.split(command.replace(str(run), str(tmp_path)))[2:])
    train_main.main()

    def losses(folder):
        return [(line["step"], line["split"], line["loss"]) for line in Workdir(folder).metrics()]

    assert len(losses(run)) > 4 and losses(tmp_path) == losses(run)


def test_the_command_of_a_measure_under_another_config_repeats_it_on_the_text_of_the_run(finished, monkeypatch, capsys):
    _, out = finished
    outcome = json.loads((out / "outcomes" / "fast-seed1.json").read_text())
    [command] = [each for each in outcome["commands"] if "configs/prefix_lm.py" in each]
    assert "--config.data.path=" in command and "--config.data.inputs_length=32" in command
    monkeypatch.setattr(sys, "argv", shlex.split(command)[2:])
    evaluate_main.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["loss"] == pytest.approx(outcome["values"]["under_prefix_lm"], rel=1e-6)


def test_a_finished_study_repeats_nothing(finished, quick, monkeypatch, capsys):
    study, out = finished
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}
    run_command(monkeypatch, study, out)
    assert "6 of 6 runs are done already" in capsys.readouterr().out
    assert before == {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.optimizer.b2=0.9"], "has another study than .* runs.slow.main.optimizer.b2 is 0.98 there and 0.9"),
        (["--worker=2/2"], "--worker=2/2 must be i/n"),
        (["--worker=6/7"], "--worker=6/7 has nothing to do: use at most 6 workers"),
        (["--report", "--out=nowhere"], "nowhere is not the folder of a study"),
        (["--out=configs"], "has other files and no study"),
        (["--seeds=0"], "the command line: seeds=0 must be 1 to 1000"),
        (["--config.nope=3"], "unknown config field in --config.nope=3"),
        (["--config.seed", "3"], "write it as --config.seed=value"),
        (["--dry_run", "--report"], "exclude each other"),
        (["--budget_unit=flops"], "--budget_unit=flops needs a budget: add --budget=AMOUNT"),
        (["--budget=1e9", "--budget_unit=flops"], "has another study than"),
    ],
)
def test_a_command_that_cannot_work_is_refused_in_one_line(arguments, message, finished, monkeypatch):
    study, out = finished
    where = [] if any(argument.startswith("--out") for argument in arguments) else [f"--out={out}"]
    monkeypatch.setattr(sys, "argv", ["train.ablate", f"--study={study}", *where, *arguments])
    with pytest.raises(ConfigError, match=message) as error:
        main()
    assert "\n" not in str(error.value) and not pathlib.Path("nowhere").exists()


def test_a_budget_of_the_command_line_may_have_another_unit(finished, monkeypatch, capsys):
    study, _ = finished
    monkeypatch.setattr("studies.dry_run._seconds", lambda *_: 1.0)  # without a step
    run_command(monkeypatch, study, "unused", "--dry_run", "--budget=2e9", "--budget_unit=flops")
    assert "2e+09 flops each" in capsys.readouterr().out


def dies_at_the_first_evaluation(job, plan, out):
    """A job that kills its own process (seed 0), or ends its parent's study (seed 1), once it has a checkpoint."""
    from train.recorder import Recorder

    evaluate = Recorder.evaluate

    def die(recorder, step, params):
        if Workdir(f"{out}/runs/{job.name}").steps():
            number = signal.SIGKILL if job.seed == 0 else signal.SIGTERM
            os.kill(os.getpid() if job.seed == 0 else os.getppid(), number)
        return evaluate(recorder, step, params)

    Recorder.evaluate = die
    jobs._main(job, plan, out)


@pytest.mark.slow
def test_a_killed_study_ends_with_the_same_outcomes(corpus, tmp_path, monkeypatch, capsys):
    """A job that is killed is one failed job; a signal stops the study; the same command continues both runs."""
    fields = small_fields(corpus, overrides=small_fields(corpus)["overrides"] | {"train.checkpoint_every": 1})
    study = write_study(tmp_path / "small.py", fields)
    with monkeypatch.context() as patch:
        patch.setattr("studies.__main__.jax.config.update", lambda *_: None)
        patch.setattr(jobs, "in_a_process", in_this_process)
        run_command(patch, study, tmp_path / "whole")
    out = tmp_path / "out"
    monkeypatch.setattr("studies.__main__.jax.config.update", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr("studies.__main__.jobs_of", lambda *_: [Job("slow", 0), Job("fast", 1), Job("fast", 0)])
        patch.setattr(jobs, "_main", dies_at_the_first_evaluation)
        with pytest.raises(Stopped, match="stopped by a signal: run the same command again to continue"):
            run_command(patch, study, out)
    folder = StudyFolder(out)
    plan = make_plan(load_study(str(study)), {})
    killed = folder.outcome(Job("slow", 0), plan)
    assert killed.state == "failed" and "ended by signal SIGKILL" in killed.reason
    assert (
        folder.outcome(Job("fast", 1), plan).state == "unfinished"
        and folder.outcome(Job("fast", 0), plan).state == "missing"
    )
    assert all(folder.workdir(name).steps() for name in ("slow-seed0", "fast-seed1"))
    assert "slow-seed0: failed: the process was ended by signal SIGKILL" in capsys.readouterr().out
    monkeypatch.setattr(jobs, "in_a_process", in_this_process)
    run_command(monkeypatch, study, out)
    assert outcomes_of(out) == outcomes_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_failed_run_is_reported_and_does_not_stop_the_others(corpus, tmp_path, quick, monkeypatch, capsys):
    # Steps that grow without bound make the loss infinite.
    variants = {
        "slow": variant(),
        "diverges": variant({RATE: 1e30, "train.max_nonfinite_updates": 1}),
    }
    study = write_study(tmp_path / "fails.py", small_fields(corpus, variants=variants, seeds=1))
    run_command(monkeypatch, study, tmp_path / "out")
    assert "diverges, seed 0: diverged: stopped at step" in capsys.readouterr().err
    outcomes = outcomes_of(tmp_path / "out")
    assert outcomes["slow-seed0"]["state"] == "complete" and outcomes["diverges-seed0"]["state"] == "diverged"


@pytest.mark.slow
def test_a_sweep_chooses_the_best_value_and_survives_one_that_diverges(corpus, tmp_path, quick, monkeypatch):
    rates = [1e-4, 1e-2, 1e30]
    swept = variant({"train.max_nonfinite_updates": 1}, sweep={RATE: rates})
    fields = small_fields(corpus, variants={"slow": variant(), "swept": swept}, seeds=1)
    run_command(monkeypatch, write_study(tmp_path / "sweeps.py", fields), tmp_path / "out")
    outcomes = outcomes_of(tmp_path / "out")
    scores = [outcomes[f"swept-learning_rate={rate}"]["values"]["loss"] for rate in rates[:2]]
    chosen = rates[scores.index(min(scores))]
    assert outcomes["swept-seed0"]["swept"] == {RATE: chosen}
    # A sweep's runs do not see the text that the study reports.
    digests = [
        outcomes[name]["heldout_digest"] for name in ("slow-seed0", "swept-seed0", f"swept-learning_rate={chosen}")
    ]
    assert digests[0] == digests[1] != digests[2]
    tried = Workdir(tmp_path / "out" / "runs" / f"swept-learning_rate={chosen}")
    assert tried.config()["data"]["heldout"] == "validation" and digests[2] == tried.config()["corpus"]["heldout"]
    assert tried.config()["train"]["steps"] == 4
    assert f"--config.{RATE}={chosen}" in outcomes["swept-seed0"]["commands"][0]


def outcome_of(job, plan, state="complete", **fields):
    """An outcome that a job may have."""
    swept = {job.field: job.value} if job.field and state == "complete" else {}
    digests = dict(config_digest=plan.config_digest(job, swept), heldout_digest=plan.heldout_digest_of(job))
    run = dict(variant=job.variant, seed=job.seed, field=job.field, value=job.value)
    return Outcome(**run, state=state, swept=swept, **digests, **fields)


def test_a_folder_that_has_hidden_files_alone_takes_a_study(corpus, tmp_path):
    (tmp_path / ".DS_Store").touch()  # by macOS's Finder
    StudyFolder(tmp_path).begin(make_plan(small_study(corpus), {}), {})
    assert (tmp_path / "study.json").exists()


def test_a_sweep_chooses_only_among_values_that_were_tried(corpus, tmp_path):
    rates = (0.001, 0.01, 0.1)
    plan = make_plan(small_study(corpus, variants={"slow": variant(), "swept": variant(sweep={RATE: rates})}), {})
    folder, tried = StudyFolder(tmp_path), [Job("swept", 0, RATE, rate) for rate in rates]
    folder.begin(plan, {})

    def write(job, **fields):
        folder.write(job, outcome_of(job, plan, **fields))

    write(tried[0], values={"loss": 3.0})
    write(tried[1])  # its loss is not finite
    write(tried[2], state="failed", reason="killed")  # which says nothing about its learning rate
    with pytest.raises(ConfigError, match=r"the run swept-learning_rate=0.1 of its sweep is not complete"):
        chosen_values("swept", plan, folder)
    write(tried[2], state="diverged", reason="stopped at step 3")
    assert chosen_values("swept", plan, folder) == {RATE: 0.001} and chosen_values("slow", plan, folder) == {}
    write(tried[0], state="diverged", reason="stopped at step 2")
    none = r"variant swept: no run of its sweep has a finite loss \({}\): sweep other values of optimizer.learning_rate"
    with pytest.raises(ConfigError, match=none.format("stopped at step 2")):
        chosen_values("swept", plan, folder)
    for job in tried:
        write(job)
    with pytest.raises(ConfigError, match=none.format("all are trained to their end")):
        chosen_values("swept", plan, folder)


def test_a_run_that_diverged_is_a_result_and_is_not_tried_again(corpus, tmp_path, quick, monkeypatch, capsys):
    """Before, each start of the command trained it again, from the same checkpoint to the same end."""
    study = write_study(tmp_path / "small.py", small_fields(corpus, seeds=1))
    plan, folder = make_plan(load_study(str(study)), {}), StudyFolder(tmp_path / "out")
    folder.begin(plan, {})
    slow, fast = jobs_of(plan)
    folder.write(slow, outcome_of(slow, plan, state="diverged", reason="stopped at step 3"))
    folder.write(fast, outcome_of(fast, plan, values={"loss": 2.0}))
    monkeypatch.setattr(jobs, "in_a_process", None)
    run_command(monkeypatch, study, folder.path)
    out, err = capsys.readouterr()
    assert "2 of 2 runs are done already" in out and "slow, seed 0: diverged: stopped at step 3" in err
    assert (
        f"not tried again: to train it anew, delete its outcome, such as {folder.path}/outcomes/slow-seed0.json" in err
    )
    folder.write(fast, outcome_of(fast, plan, state="failed", reason="killed"))
    monkeypatch.setattr(jobs, "in_a_process", lambda job, *_: folder.write(job, outcome_of(job, plan, state="failed")))
    with pytest.raises(ConfigError, match=r"^1 run failed: run the same command again to try again$"):
        run_command(monkeypatch, study, folder.path)


def test_the_time_left_is_that_of_the_runs_that_are_left(corpus, tmp_path, monkeypatch, capsys):
    """Six equal runs: the first fails at once, two take 100 seconds, and another runner does the others."""
    plan, folder, now = make_plan(small_study(corpus, seeds=3), {}), StudyFolder(tmp_path), [0.0]
    folder.begin(plan, {})
    every = jobs_of(plan)

    def finish(job, *_):
        place, fields = every.index(job), dict(values={"loss": 2.0})
        folder.write(job, outcome_of(job, plan, **(fields if place else dict(state="failed", reason="killed"))))
        if place:
            now[0] += 100
            folder.write(every[place + 1], outcome_of(every[place + 1], plan, **fields))
        return 0

    monkeypatch.setattr(jobs, "in_a_process", finish)
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    assert jobs.run_jobs(every[:5], plan, folder)
    said = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if "begins" not in line]
    other = "done, by another runner"
    assert said[1:] == ["failed: killed", "loss 2; about 5 min left", other, "loss 2; about 100 s left", other]


class Killed(Exception):
    """In place of a signal, in this process."""


@pytest.mark.parametrize("step", [0, 2])
def test_a_run_after_a_start_continues_where_the_study_has_moved(step, corpus, tmp_path, monkeypatch):
    """Killed before its first checkpoint, or after it. Before, the path of the start was that of another run."""
    variants = {"slow": variant(), "both": variant(start=stage("configs/clm.py", 0.5))}
    overrides = small_fields(corpus)["overrides"] | {"train.checkpoint_every": 1}
    plan = make_plan(small_study(corpus, variants=variants, overrides=overrides, budget=raw_tokens(1024), seeds=1), {})
    job, evaluate = Job("both", 0), Recorder.evaluate

    def killed(recorder, at, params):
        loss = evaluate(recorder, at, params)
        if str(recorder.workdir).endswith("both-seed0") and at == step:
            raise Killed
        return loss

    folders = [StudyFolder(tmp_path / name) for name in ("whole", "begun", "moved")]
    for folder in folders[:2]:
        folder.begin(plan, {})
    assert do_job(job, plan, folders[0])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Recorder, "evaluate", killed)
        do_job(job, plan, folders[1])
    assert bool(folders[1].workdir("both-seed0").steps()) == (step > 0)
    shutil.move(folders[1].path, folders[2].path)
    assert do_job(job, plan, folders[2])
    whole, moved = (folder.outcome(job, plan) for folder in (folders[0], folders[2]))
    assert moved.values == whole.values and moved.curve == whole.curve
    start = folders[2].workdir("both-seed0").config()["train"]["init_from"]
    assert start == folders[2].workdir("both-seed0-start").path


def test_a_damaged_outcome_is_named_in_the_report_and_measured_again(finished, tmp_path, quick, monkeypatch, capsys):
    study, out = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    file = copy / "outcomes" / "slow-seed0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"values": {"loss": float("nan")}}))
    run_command(monkeypatch, study, copy, "--report")
    assert "slow, seed 0: damaged: " in capsys.readouterr().err
    text = (copy / "report.md").read_text()
    assert "5 of 6 runs are complete" in text and "has a number that is not finite" in text
    run_command(monkeypatch, study, copy)
    assert "5 of 6 runs are done already" in capsys.readouterr().out
    again, before = (outcomes_of(folder)["slow-seed0"] for folder in (copy, out))
    assert again["values"] == before["values"] and again["state"] == "complete"


def environment_of(file):
    """The names in the environment of an outcome, without those of the texts that it was trained on."""
    return {name for name in json.loads(file.read_text())["environment"] if not name.startswith("digest of the text")}


def replaced(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda file: file.write_text(file.with_name("fast-seed0.json").read_text()),
            "outcome of variant 'fast', seed 0",
        ),
        (
            lambda file: file.write_text(file.with_name("fast-seed0.json").read_text().replace('"fast"', '"slow"')),
            "config_digest is not that of the run's config",
        ),
        (lambda file: replaced(file, heldout_digest="ab"), "heldout_digest=ab is not [0-9a-f]+, that of the study"),
        (
            lambda file: replaced(file, environment={"digest of the text": "ab"}),
            r"trained on other text than that of the study: the digest of the text was ab and is [0-9a-f]+",
        ),
        (
            lambda file: replaced(file, environment={"digest of the text of accuracy": "ab"}),
            r"on other text than that of the study: the digest of the text of accuracy was ab and is [0-9a-f]+",
        ),
        (
            lambda file: replaced(file, environment=dict.fromkeys(environment_of(file), "ab")),
            r"with another file than there is now: the digest of /.*/pairs\.jsonl was ab and is [0-9a-f]{16}",
        ),
        (lambda file: replaced(file, values=[1.0]), r"values=\[1.0\] must be a group of fields"),
        (lambda file: replaced(file, values={"loss": math.inf}), "has a number that is not finite"),
        (lambda file: replaced(file, margins={"loss": math.nan}), "has a number that is not finite"),
        (lambda file: replaced(file, floors={"loss": {"trigram": math.inf}}), "has a number that is not finite"),
        (lambda file: replaced(file, state="missing"), "state='missing' is never written"),
        (lambda file: replaced(file, swept={RATE: 0.1}), "config_digest is not"),
        (lambda file: replaced(file, extra=1), "unknown field extra: choose one of variant"),
        (lambda file: file.write_text("[]"), "it has no fields"),
    ],
)
def test_an_outcome_that_is_not_of_its_run_is_damaged_and_named(damage, message, finished, plan, tmp_path):
    _, out = finished
    shutil.copytree(out / "outcomes", tmp_path / "outcomes")
    damage(tmp_path / "outcomes" / "slow-seed0.json")
    outcome = StudyFolder(tmp_path).outcome(Job("slow", 0), plan)
    assert outcome.state == "damaged" and re.search(message, outcome.reason) and "\n" not in outcome.reason
    assert (outcome.variant, outcome.seed) == ("slow", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "damaged, or of another version: field study is missing: choose another --out"),
        ("\x00", "is damaged: "),
    ],
)
def test_a_damaged_study_file_is_one_line(text, message, finished, tmp_path, monkeypatch):
    study, _ = finished
    (tmp_path / "study.json").write_text(text)
    for flags in ([], ["--report"]):
        with pytest.raises(ConfigError, match=message) as error:
            run_command(monkeypatch, study, tmp_path, *flags)
        assert "\n" not in str(error.value)


def test_hidden_files_of_editors_jupyter_and_macos_are_not_code(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_ROOT", tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step.py").write_text("x = 1\n")
    (tmp_path / "run" / "._step.py").write_bytes(b"\0\5\x16\7Mac OS X")
    (tmp_path / "run" / ".#step.py").symlink_to("user@host.123:456")  # Emacs's lock of a file that is edited
    (tmp_path / "run" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "run" / ".ipynb_checkpoints" / "step-checkpoint.py").write_text("x = 0\n")
    assert source_files() == {"run/step.py": b"x = 1\n"}


@pytest.mark.slow
def test_a_study_keeps_its_code_and_refuses_other_code(corpus, tmp_path, quick, monkeypatch, capsys):
    study, out = write_study(tmp_path / "small.py", small_fields(corpus, seeds=1)), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("studies.__main__.jobs_of", lambda *_: [Job("slow", 0)])
        run_command(patch, study, out)
    first = digest_of(source_files())
    assert "studies/report.md.jinja" in source_files()  # so that the code writes the report too
    with zipfile.ZipFile(out / "code" / f"{first}.zip") as archive:
        assert digest_of({name: archive.read(name) for name in archive.namelist()}) == first
    later = source_files() | {"run/step.py": b"# a later version\n"}
    for module in (jobs, results):
        monkeypatch.setattr(module, "source_files", lambda: later)
    other = digest_of(later)
    with pytest.raises(ConfigError, match=f"began with code {first}, .* now {other}: restore it, or add --mixed_code"):
        run_command(monkeypatch, study, out)
    # A job reads the files again: they may change while a study runs.
    plan = make_plan(load_study(str(study)), {})
    with pytest.raises(ConfigError, match="add --mixed_code"):
        do_job(Job("fast", 0), plan, StudyFolder(out))
    # The run is trained by the old code and measured by the new.
    (out / "outcomes" / "slow-seed0.json").unlink()
    run_command(monkeypatch, study, out, "--mixed_code")
    outcomes = outcomes_of(out)
    assert [(outcomes[run]["code"], outcomes[run]["measured_by"]) for run in outcomes] == [
        (other, other),
        (first, other),
    ]
    page = (out / "report.md").read_text()
    assert f"**Mixed code: the runs do not share one version of the source code (code {first}, measured by" in page
    assert "--mixed_code" in page and (out / "code" / f"{other}.zip").exists()
    run_command(monkeypatch, study, out, "--report")


def test_a_field_that_the_first_code_did_not_have_is_no_other_study(finished, tmp_path, monkeypatch, quick):
    study, out = finished
    out = shutil.copytree(out, tmp_path / "out")
    later = frozenset({"model.attention_dropout", "data.filters.max_tokens"})
    plan = dataclasses.replace(make_plan(load_study(str(study)), {}), later=later)
    there = json.loads((out / "study.json").read_text())
    there["runs"] = results._study_fields(plan, {})["runs"]
    (out / "study.json").write_text(json.dumps(there))
    for job in jobs_of(plan):
        file = out / "outcomes" / f"{job.name}.json"
        outcome = json.loads(file.read_text()) | {"config_digest": plan.config_digest(job, {})}
        first, *rest = outcome["commands"]  # earlier code wrote the commands of measures by themselves
        file.write_text(json.dumps(outcome | {"commands": [first], "measure_commands": rest}))
    before = outcomes_of(out)
    run_command(monkeypatch, study, out)
    written = (out / "study.json").read_text()
    assert outcomes_of(out) == before and "attention_dropout" not in written and "max_tokens" not in written
    assert "--probe=continuation" in (out / "report.md").read_text()
    assert "6 of 6 runs are complete" in (out / "report.md").read_text()
    with pytest.raises(ConfigError, match=r"main\.model\.attention_dropout is null there and false here"):
        run_command(monkeypatch, study, out, "--config.model.attention_dropout=False")
    (out / "study.json").write_text(json.dumps(there | {"runs": {"slow": {}}}))
    with pytest.raises(ConfigError, match=r"has another study than --study: runs\.slow"):
        run_command(monkeypatch, study, out, "--report")


def test_more_seeds_may_be_added(corpus, tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin(make_plan(small_study(corpus), {}), {})
    folder.begin(make_plan(small_study(corpus, seeds=3), {}), {})
    there = folder.study_file()
    assert (there.study.seeds, there.study.budget.amount, there.overrides) == (3, 512, {})


def test_variants_may_be_added_and_not_removed(corpus, tmp_path):
    folder, study = StudyFolder(tmp_path), small_study(corpus)
    other = dataclasses.replace(study.variants["slow"], overrides={RATE: 0.03})
    more = dataclasses.replace(study, variants={**study.variants, "other": other})
    folder.begin(make_plan(study, {}), {})
    folder.begin(make_plan(more, {}), {})
    assert folder.study_file().runs.keys() == {*study.variants, "other"}
    with pytest.raises(ConfigError, match=r"has another study than --study: runs\.other\..* here"):
        folder.check(make_plan(study, {}))


def test_the_report_says_that_another_one_had_verdicts_with_another_number_of_seeds(
    corpus, tmp_path, quick, monkeypatch
):
    measures = {"loss": heldout_loss(), "solved": success_rate(heldout_loss(), at=2.05)}
    study = write_study(tmp_path / "small.py", small_fields(corpus, seeds=4, measures=measures))
    folder = StudyFolder(tmp_path / "out")
    plan = make_plan(load_study(str(study)), {})
    folder.begin(plan, {})
    for job in jobs_of(plan):
        folder.write(job, outcome_of(job, plan, values=dict.fromkeys(measures, 2.0 + 0.1 * job.seed)))
    said = "A report with verdicts was also written with"
    for seeds, others in ((2, ""), (3, ""), (4, f"{said} 3 seeds"), (3, f"{said} 4 seeds")):
        run_command(monkeypatch, study, folder.path, "--report", f"--seeds={seeds}")
        page = (folder.path / "report.md").read_text()
        assert others in page and (said in page) == bool(others)  # means of two seeds have no test
    folder.begin(plan, {})
    assert folder.study_file().reported == (3, 4)


@pytest.mark.parametrize(
    ("metric", "floors"),
    [
        ("spans.3.bits_per_byte", {"trigram": 1.5}),
        ("spans.3.nats_per_byte", {"trigram": 1.5 * math.log(2)}),
        ("spans.3.exact_match", {}),  # before, 1.5: no exact match was better, and "nothing follows" from any
        ("spans.3.masked_bits_per_byte", {"trigram": 1.7}),
        ("exact_match", {"chance": 0.25}),
    ],
)
def test_an_exact_match_next_to_bits_per_byte_does_not_have_their_floors(metric, floors):
    of_span = {"exact_match": 0.2, "bits_per_byte": 1.9, "nats_per_byte": 1.3, "floors": {"trigram": 1.5}}
    of_span |= {"masked_bits_per_byte": 2.0, "masked_floors": {"trigram": 1.7}}
    line = {"spans": {"3": of_span}, "exact_match": 0.5, "floors": {"chance": 0.25}}
    measure = make_measure("infilling", probe("infilling", metric))
    trained = types.SimpleNamespace(answer=lambda *_: line)
    assert measure.measure("infilling", trained).floors == floors


def test_a_run_that_was_trained_on_another_corpus_is_not_measured(finished, plan, tmp_path):
    _, out = finished
    folder = StudyFolder(shutil.copytree(out, tmp_path / "copy"))
    workdir = folder.workdir("slow-seed0")
    config = workdir.config()
    workdir.write_config(config | {"corpus": config["corpus"] | {"fingerprint": "other"}})
    with pytest.raises(ConfigError, match=r"slow-seed0 was trained on other text than the study's: restore the corpus"):
        do_job(Job("slow", 0), plan, folder)


def write_metrics(folder, **line):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"train": {"steps": 4}}))
    line = {"step": 4, "split": "eval", "loss": 2.0, "raw_tokens": 300, "flops": 1.0, "seconds": 1.0} | line
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return Workdir(folder)


@pytest.mark.parametrize("change", [{RATE: 0.5}, {"model.d_ff": 8}, {"train.steps": 3}, {"data.path": "x"}])
def test_a_run_of_another_config_is_not_measured(change, finished, plan, tmp_path):
    """Such as a run that was copied into the folder, or continued by train.main: before, it was a run of the study."""
    _, out = finished
    folder = StudyFolder(shutil.copytree(out, tmp_path / "copy"))
    workdir, job = folder.workdir("slow-seed0"), Job("slow", 0)
    folder.remove(job)
    workdir.write_config(with_fields(workdir.config(), change))
    [(field, value)] = change.items()
    with pytest.raises(ConfigError, match=rf"slow-seed0 was trained with another config .*\({field} is {value} there"):
        do_job(job, plan, folder)


def test_a_run_without_its_last_evaluation_is_not_measured(tmp_path):
    with pytest.raises(ConfigError, match=r"lacks the evaluation of step 4: delete it to train the run again"):
        finished_lines(write_metrics(tmp_path / "main", step=2))


@pytest.mark.parametrize(
    ("first", "last", "count", "task", "worker"), [(0, 3, 4, 2, "2/4"), (1, 3, 3, 1, "0/3"), (1, 5, 3, 3, None)]
)
def test_the_slurm_script_gives_each_task_its_part(first, last, count, task, worker, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text("")
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CLOZE_VENV": str(tmp_path)}
    array = {"TASK_ID": task, "TASK_MIN": first, "TASK_MAX": last, "TASK_COUNT": count}
    environment |= {f"SLURM_ARRAY_{name}": str(value) for name, value in array.items()}
    script = ["bash", str(ROOT / "launch" / "study_slurm.sh"), "--study=x.py"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    if worker is None:
        assert done.returncode == 1 and "--array must be consecutive numbers" in done.stderr
    else:
        assert done.stdout.split() == ["python", "-m", "train.ablate", f"--worker={worker}", "--study=x.py"]


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("step 4/4\nerror: the disk is full\nWARNING: loss 3\n", "the disk is full"),
        (
            "Traceback ...\nRuntimeError: boom\nFor simplicity, Grain has removed its internal frames\n",
            "RuntimeError: boom",
        ),
        ("trigram  0.901 nats per token\n", "exit status 3"),
    ],
)
def test_the_reason_of_a_failure_is_the_line_of_the_error(printed, reason):
    plan = types.SimpleNamespace(config_digest=lambda job, swept: "")
    assert jobs._failed(Job("slow", 0), plan, 3, printed, "a.log").reason == f"{reason}; log: a.log"
