"""The plan of fine-tunings: their fields and texts, and the floor without pre-training."""

import dataclasses
import json

import pytest

from command.flags import resolve
from configs.studies.base import fine_tuning, heldout_loss, probe, raw_tokens, variant
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies.dry_run import print_plan
from studies.jobs import _flops
from studies.plan import Job, jobs_of
from studies.planning import fine_tuning_fields, make_plan
from studies.results import Outcome, StudyFolder
from tests.studies.studies import SMALL, on, small_study

DECODER = SMALL | {"model.architecture": "decoder_only"}


def test_labelled_texts_that_are_scored_too_are_said(corpus, tmp_path):
    pytest.importorskip("sklearn")
    texts = {name: [f"text {name} {k}" for k in range(8)] for name in ("path", "test")}
    texts["test"][:3] = texts["path"][2:5]
    for name, of_file in texts.items():
        lines = [json.dumps({"text": text, "label": "ab"[k % 2]}) for k, text in enumerate(of_file)]
        (tmp_path / name).write_text("\n".join(lines))
    files = {name: str(tmp_path / name) for name in texts}
    measures = {"loss": heldout_loss(), "read": probe("linear", "labels.all.accuracy", labels=("all",), **files)}
    plan = make_plan(small_study(corpus, measures=measures), {})
    said = f"3 of the texts of {files['test']}, which are scored, are in {files['path']} too"
    assert plan.warnings[-1] == said and plan.file_digests.keys() == {f"digest of {file}" for file in files.values()}
    StudyFolder(tmp_path / "out").begin(plan, {})
    assert StudyFolder(tmp_path / "out").study_file().warnings[-1] == said  # which a board reads


def test_texts_that_rows_of_a_variant_cut_are_said(corpus, tmp_path):
    """Before, longer rows were better, with random parameters too, because their states are of more text."""
    pytest.importorskip("sklearn")
    lines = [json.dumps({"text": f"{'long ' * (k // 4)}text {k}", "label": "ab"[k % 2]}) for k in range(32)]
    (tmp_path / "texts").write_text("\n".join(lines))
    file = str(tmp_path / "texts")
    measures = {"loss": heldout_loss()} | {
        name: probe("linear", "labels.all.accuracy", labels=("all",), path=file, test=file, **more)
        for name, more in {"read": {}, "fixed": {"config": "configs/clm.py"}}.items()
    }
    longer = {"data.inputs_length": 64, "train.batch_size": 2}
    for change, said in ((longer, ["read reads starts of texts that do not fit a row: slow 24, fast 0"]), ({}, [])):
        variants = {"slow": variant(), "fast": variant({"optimizer.b2": 0.9} | change)}
        plan = make_plan(small_study(corpus, variants=variants, measures=measures), {})
        assert [line for line in plan.warnings if "do not fit" in line] == said


def labelled(corpus):
    """The overrides of a fine-tuning on labelled texts of two classes."""
    text = on(corpus) | {"data.source": "jsonl", "data.path": str(corpus / "labelled.jsonl")}
    return text | {"objective.classes": ("a", "b"), "train.steps": 3, "optimizer.warmup_steps": 1}


def fine_tuned(corpus, **changes):
    """A study with two fine-tuned measures that share a run."""
    overrides = labelled(corpus)
    measures = {
        "loss": heldout_loss(),
        "accuracy": fine_tuning("accuracy", overrides=overrides),
        "f1": fine_tuning("macro_f1", overrides=overrides),
    }
    return small_study(corpus, **{"measures": measures} | changes)


def test_fine_tuning_has_the_runs_model_vocabulary_and_split(corpus):
    plan = make_plan(fine_tuned(corpus), {})
    slow = plan.variants["slow"]
    assert len(slow.distinct_fine_tunings) == 1 and set(slow.fine_tunings) == {"accuracy", "f1"}
    fields = slow.fine_tunings["accuracy"].fields
    assert fields["model"]["architecture"] == "decoder_only" and fields["model"]["d_model"] == 16
    assert fields["train"]["steps"] == 3 and fields["data"]["source"] == "jsonl"


def test_the_plan_opens_the_labelled_texts_of_a_fine_tuning(corpus, tmp_path):
    """Before, a missing file or class was found when the first run had been trained."""
    plan = make_plan(fine_tuned(corpus), {})
    digests = plan.variants["slow"].text_digests
    assert list(digests) == [f"digest of the text{stage}" for stage in ("", " of accuracy", " of f1")]
    text, accuracy, f1 = digests.values()
    assert accuracy == f1 != text and plan.scratch["no_pretraining"].text_digests == {
        name: accuracy for name in digests if name.endswith((" accuracy", " f1"))
    }
    for changes, message in (
        ({"data.path": str(tmp_path / "none.jsonl")}, r"none\.jsonl"),
        ({"objective.classes": ("a", "c")}, r"objective\.classes contains 'c'"),
    ):
        measures = {"loss": heldout_loss(), "accuracy": fine_tuning(overrides=labelled(corpus) | changes)}
        with pytest.raises(ConfigError, match=f"^variant slow: measure accuracy does not fit: .*{message}"):
            make_plan(fine_tuned(corpus, measures=measures), {})


def test_fine_tuning_longer_than_the_learned_positions_is_refused(corpus):
    overrides = {**SMALL, **on(corpus), "model.positions": "learned", "data.targets_length": 32}
    with pytest.raises(ConfigError, match=r"measure accuracy does not fit: .*position"):
        make_plan(small_study(corpus, overrides=overrides, measures={"accuracy": fine_tuning()}), {})


def test_fine_tunings_without_pretraining_are_planned_once_a_seed(corpus, capsys):
    plan = make_plan(fine_tuned(corpus), {})
    [scratch] = plan.scratch.values()
    assert (scratch.name, scratch.shared_by) == ("no_pretraining", ("slow", "fast"))
    assert scratch.fine_tunings == plan.variants["slow"].fine_tunings and set(scratch.fine_tunings) == {
        "accuracy",
        "f1",
    }
    assert scratch.distinct_fine_tunings == [scratch.fine_tunings["accuracy"]]
    names = [job.name for job in jobs_of(plan)]
    assert names == [f"{name}-seed{seed}" for seed in (0, 1) for name in ("slow", "fast", "no_pretraining")]
    print_plan(plan, jobs_of(plan))
    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if "no_pretraining" in line]
    assert row[:2] == ["no_pretraining", "2"] and "3" in row  # steps of a fine-tuning
    assert make_plan(small_study(corpus), {}).scratch == {}


def test_results_have_the_floor_without_pretraining(corpus, tmp_path):
    plan, folder = make_plan(fine_tuned(corpus), {}), StudyFolder(tmp_path)
    folder.begin(plan, {})
    done, failed = (Job("no_pretraining", seed) for seed in (0, 1))
    values = {"accuracy": 0.5, "f1": 0.25}
    digests = [plan.config_digest(job, {}) for job in (done, failed)]
    folder.write(done, Outcome(variant="no_pretraining", seed=0, values=values, config_digest=digests[0]))
    why = dict(state="failed", reason="killed", config_digest=digests[1])
    folder.write(failed, Outcome(variant="no_pretraining", seed=1, **why))
    results = folder.results(plan, "", {})
    assert results.outcomes == [] and [run.values for run in results.scratch] == [values]
    assert results.scratch_of == {"slow": "no_pretraining", "fast": "no_pretraining"}
    problems = [(run.variant, run.seed, run.state) for run in results.problems]
    assert problems[-1] == ("no_pretraining", 1, "failed") and len(problems) == 5
    folder.remove(failed)
    (tmp_path / "runs" / "no_pretraining-seed1-accuracy").mkdir()
    assert folder.outcome(failed, plan).state == "unfinished"


def test_models_that_differ_have_their_own_floor_without_pretraining(corpus):
    variants = {
        "slow": variant(),
        "wide": variant({"model.d_ff": 32}),
        "fast": variant({"optimizer.learning_rate": 0.01}),
        "both_sides": variant({"data.bidirectional_inputs": True}, config="configs/prefix_lm.py"),
        "not_tuned": variant({"optimizer.b2": 0.9}),
    }
    study = fine_tuned(corpus, variants=variants, budget=raw_tokens(3840))
    tuned = tuple(name for name in variants if name != "not_tuned")
    measures = {name: fields | ({} if name == "loss" else {"only": tuned}) for name, fields in study.measures.items()}
    plan = make_plan(dataclasses.replace(study, measures=measures), {})
    names = {name: scratch.shared_by for name, scratch in plan.scratch.items()}
    assert names == {
        "no_pretraining_slow": ("slow", "fast"),
        "no_pretraining_wide": ("wide",),
        "no_pretraining_both_sides": ("both_sides",),
    }
    assert plan.scratch["no_pretraining_wide"].fine_tunings["accuracy"].fields["model"]["d_ff"] == 32


def test_a_sweep_leaves_the_floor_without_pretraining_to_one_worker(corpus):
    sweep = {"optimizer.learning_rate": [1e-3, 2e-3]}
    variants = {"slow": variant(), "fast": variant({"optimizer.b2": 0.9}, sweep=sweep)}
    jobs = jobs_of(make_plan(fine_tuned(corpus, variants=variants), {}), 2, 3)
    assert jobs == [Job("no_pretraining", 0), Job("no_pretraining", 1)]


def test_fine_tunings_that_decide_a_sweep_are_in_its_time(corpus, monkeypatch, capsys):
    """Before, they were counted for the runs of seeds alone."""
    variants = {
        "slow": variant(sweep={"optimizer.learning_rate": [1e-3, 2e-3]}),
        "fast": variant({"optimizer.b2": 0.9}),
    }
    measures = fine_tuned(corpus).measures
    first = dict(sorted(measures.items()))  # accuracy, f1, loss
    plan = make_plan(fine_tuned(corpus, variants=variants, measures=first), {})
    swept = Job("slow", 0, "optimizer.learning_rate", 1e-3)
    slow = plan.variants["slow"]
    assert _flops(plan, swept) == _flops(plan, Job("slow", 0)) == slow.flops + slow.fine_tunings["accuracy"].flops
    other = make_plan(fine_tuned(corpus, variants=variants, measures=measures), {})
    assert _flops(other, swept) == slow.flops
    monkeypatch.setattr("studies.dry_run._seconds", lambda *_: 60.0)
    print_plan(plan, jobs_of(plan))
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("slow")]
    assert row.split()[1] == "4" and row.endswith(" 8 min")


def test_the_name_of_the_floor_is_taken(corpus):
    variants = {"slow": variant(), "no_pretraining": variant({"optimizer.b2": 0.9})}
    with pytest.raises(ConfigError, match="variant no_pretraining has the name of the fine-tunings without"):
        make_plan(fine_tuned(corpus, variants=variants), {})


@pytest.mark.parametrize(
    ("config", "overrides", "both_sides"),
    [
        ("configs/clm.py", {}, False),
        ("configs/prefix_lm.py", {}, True),
        ("configs/prefix_lm.py", {"data.bidirectional_inputs": False}, False),
        ("configs/ul2.py", {}, True),
        ("configs/ul2_baselines.py:sclm", {}, True),
        ("configs/ul2_baselines.py:sclm", {"objective.denoisers.sc.weight": 0.0}, False),
    ],
)
def test_a_decoder_is_fine_tuned_as_it_read_inputs(config, overrides, both_sides):
    trained = make_experiment(resolve(config, DECODER | overrides, ""))
    fields = fine_tuning_fields(resolve("configs/classification.py", {}, ""), {}, trained)
    assert fields["data"]["bidirectional_inputs"] is both_sides
    assert make_experiment(fields).model.has_prefix is both_sides


def test_overrides_of_the_measure_come_first():
    trained = make_experiment(resolve("configs/clm.py", DECODER, ""))
    overrides = {"data.bidirectional_inputs": True, "data.split_seed": 3}
    fields = fine_tuning_fields(resolve("configs/classification.py", overrides, ""), overrides, trained)
    assert fields["data"]["bidirectional_inputs"] is True and fields["data"]["split_seed"] == 3
