"""The folder of a study: workers that begin at once, changed configs, damaged files, and what a sweep chooses."""

import json
import os
import subprocess
import threading

import pytest

from configs.studies.base import heldout_loss, variant
from contract.errors import ConfigError
from studies.folder import Failure, StudyFolder
from studies.jobs import Job
from studies.plan import make_plan
from studies.results import Curve, Outcome
from studies.runner import last_error
from studies.sweep import chosen_values, untried
from studies.trained import finished_lines
from tests.studies.studies import small_study
from tests.train.subprocesses import ROOT


@pytest.fixture(scope="module")
def plan(corpus):
    swept = variant(sweep={"optimizer.learning_rate": [0.001, 0.01, 0.1]})
    return make_plan(small_study(corpus, variants={"slow": variant(), "swept": swept}), {})


def _outcome(loss, **changes):
    values = {"loss": loss} if loss is not None else {}
    fields = dict(variant="swept", seed=0, values=values, samples={}, curve=Curve([1], [1.0], [2.0]), num_params=1)
    fields |= dict(steps=1, raw_tokens=1, flops=1.0, seconds=1.0, swept={}, commands=[], heldout_digest="d")
    return Outcome(**fields | changes)


def test_workers_may_begin_at_once(plan, tmp_path):
    for trial in range(20):
        folder, errors, barrier = StudyFolder(tmp_path / str(trial)), [], threading.Barrier(4)

        def begin(folder=folder, errors=errors, barrier=barrier):
            barrier.wait()
            try:
                folder.begin("small", plan, "small.py", {})
            except Exception as error:
                errors.append(error)

        workers = [threading.Thread(target=begin) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not errors
        folder.check("small", plan, "small.py")


def test_a_kill_at_the_start_does_not_block_the_folder(plan, tmp_path):
    (tmp_path / "runs").mkdir()
    StudyFolder(tmp_path).begin("small", plan, "small.py", {})
    os.remove(tmp_path / "study.json")
    (tmp_path / "runs" / "slow-seed0").mkdir()
    with pytest.raises(ConfigError, match="has other files and no study"):
        StudyFolder(tmp_path).begin("small", plan, "small.py", {})


def test_a_config_file_that_changed_is_another_study(plan, corpus, tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin("small", plan, "small.py", {})
    changed = make_plan(plan.study, {"optimizer.b2": "0.5"})
    with pytest.raises(ConfigError, match=r"another study .* runs.slow.main.optimizer.b2 is 0.98 there and 0.5 here"):
        folder.begin("small", changed, "small.py", {})
    more_seeds = make_plan(small_study(corpus, variants=_variants(plan), seeds=3), {})
    folder.begin("small", more_seeds, "small.py", {})
    assert json.loads((tmp_path / "study.json").read_text())["study"]["seeds"] == 3


def _variants(plan):
    return {
        name: variant(one.overrides, sweep=one.sweep, config=one.config) for name, one in plan.study.variants.items()
    }


def test_a_damaged_study_says_what_to_do(plan, tmp_path):
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ConfigError, match=r"study.json is damaged: .*: choose another --out"):
        StudyFolder(tmp_path).begin("small", plan, "small.py", {})


@pytest.mark.parametrize("value", ["high", None, [1.0], float("nan")])
def test_an_outcome_with_a_value_that_is_not_a_number_is_damaged(value, plan, tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin("small", plan, "small.py", {})
    folder.write_outcome("slow-seed0", _outcome(1.0))
    assert folder.is_complete("slow-seed0")
    file = tmp_path / "outcomes" / "slow-seed0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"values": {"loss": value}}))
    with pytest.raises(ConfigError, match=r"slow-seed0.json is damaged: .* delete it to measure the run again"):
        folder.outcome("slow-seed0")


def test_a_sweep_chooses_once_and_only_among_values_that_were_tried(plan, tmp_path):
    folder, swept = StudyFolder(tmp_path), plan.variants["swept"]
    folder.begin("small", plan, "small.py", {})
    names = [Job("swept", (0,), "optimizer.learning_rate", rate).name for rate in (0.001, 0.01, 0.1)]
    folder.write_outcome(names[0], _outcome(3.0))
    folder.write_outcome(names[1], _outcome(None))  # its loss is not finite
    # A run that was killed says nothing about its learning rate.
    folder.write_failure(names[2], Failure("the process was ended by signal SIGKILL", diverged=False))
    assert untried(swept, folder) == [names[2]]
    with pytest.raises(ConfigError, match=r"the run swept-learning_rate=0.1 of its sweep is not complete"):
        chosen_values(swept, plan, folder)
    folder.write_failure(names[2], Failure("gradients were not finite", diverged=True))
    assert chosen_values(swept, plan, folder) == {"optimizer.learning_rate": 0.001}
    # Later seeds have the same rate, whatever a repeated run of the sweep gives.
    folder.write_outcome(names[2], _outcome(1.0))
    assert chosen_values(swept, plan, folder) == {"optimizer.learning_rate": 0.001}


def test_a_sweep_of_which_all_values_diverge_is_an_error(plan, tmp_path):
    folder, swept = StudyFolder(tmp_path), plan.variants["swept"]
    folder.begin("small", plan, "small.py", {})
    for rate in (0.001, 0.01, 0.1):
        name = Job("swept", (0,), "optimizer.learning_rate", rate).name
        folder.write_failure(name, Failure("stopped at step 3", diverged=True))
    with pytest.raises(ConfigError, match="every run of its sweep diverged: stopped at step 3"):
        chosen_values(swept, plan, folder)


def test_the_error_of_an_earlier_try_is_not_that_of_the_last_one(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("error: the disk is full\n")
    begin = log.stat().st_size
    log.write_text(log.read_text() + "Traceback\nMemoryError: too much\n")
    assert last_error(log, 1, begin).startswith("MemoryError: too much")
    assert last_error(log, -9, begin).startswith("the process was ended by signal SIGKILL")
    assert last_error(log, 1) == "the disk is full"


def test_metrics_without_the_last_evaluation_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"train": {"steps": 4}}))
    lines = [{"step": step, "split": "eval", "loss": 1.0} for step in (2, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert finished_lines(str(tmp_path)) == lines
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    with pytest.raises(ConfigError, match=r"lacks the evaluation of step 4: delete .* to train the run again"):
        finished_lines(str(tmp_path))


def test_tokens_to_a_loss_include_those_of_the_start(tmp_path):
    from studies.measures import make_measure
    from studies.trained import Trained

    for name, tokens in (("start", 1000), ("main", 300)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"train": {"steps": 4}}))
        line = {"step": 4, "split": "eval", "loss": 2.0, "raw_tokens": tokens, "flops": 1.0, "seconds": 1.0}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    measure = make_measure("reach", dict(kind="tokens_to_loss", loss=2.5, better="lower"))
    assert measure.value("reach", Trained(str(tmp_path / "main"), str(tmp_path / "start"), {})) == 1300
    assert measure.value("reach", Trained(str(tmp_path / "main"), "", {})) == 300
    assert make_measure("loss", heldout_loss()).value("loss", Trained(str(tmp_path / "main"), "", {})) == 2.0


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
    script = ["bash", str(ROOT / "launch" / "ablate_slurm.sh"), "--study=x.py"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    if worker is None:
        assert done.returncode == 1 and "--array must be consecutive numbers" in done.stderr
    else:
        assert done.stdout.split() == ["python", "-m", "train.ablate", f"--worker={worker}", "--study=x.py"]
