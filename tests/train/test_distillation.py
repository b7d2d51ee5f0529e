"""Runs with a teacher: what they report and save, how they continue, and what is refused before the corpus is read."""

import io
import json
import shutil

import jax
import numpy as np
import pytest
from rich.console import Console

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.origin import open_teacher
from huggingface.teacher import load_teacher, with_teacher
from plan.estimate import estimate, parse_topology
from run.restore import load_experiment, load_params
from tests.table import small_config
from tests.train.small_runs import array_checksums, save_random_run
from train import loop
from train.loop import train_and_evaluate
from workdir.workdir import Workdir

OBJECTIVES = {"decoder_only": "clm", "encoder_only": "mlm", "encoder_decoder": "span_corruption"}


def fields(corpus, name, architecture, **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config(name, architecture, **text | {"train__trackers": ()} | overrides)


@pytest.fixture(scope="session")
def teachers(corpus, tmp_path_factory):
    """Architecture -> the folder of a run with random parameters, narrower and deeper than the models of the tests."""
    folder = tmp_path_factory.mktemp("teachers")
    for architecture, name in OBJECTIVES.items():
        sizes = {"model__d_model": 16, "model__num_layers": 3, "optimizer__learning_rate": 0.5}
        save_random_run(fields(corpus, name, architecture, **sizes), str(folder / architecture))
    return folder


def train(config, workdir):
    console = Console(file=io.StringIO(), width=1000)
    assert train_and_evaluate(make_experiment(config), str(workdir), console=console)
    return console.file.getvalue()


def metrics(workdir, split):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("split") == split]


@pytest.mark.slow
def test_runs_learn_from_a_teacher_and_report_the_loss_of_their_targets(corpus, teachers, tmp_path):
    folder = teachers / "encoder_decoder"
    teacher = {"distillation__teacher": str(folder), "distillation__top_k": 7}
    config = fields(corpus, "span_corruption", "encoder_decoder", **teacher)
    printed = train(config, tmp_path / "run")
    assert f"teacher  distillation.teacher={folder}, step 0: 0.0" in printed
    of_train, of_eval = (metrics(tmp_path / "run", split) for split in ("train", "eval"))
    assert len(of_train) == 2 and all(line["distillation_loss"] > 0 for line in of_train)
    assert of_eval and not any("distillation_loss" in line for line in of_eval)
    assert not any("teacher" in name for name in array_checksums(tmp_path / "run", 2))
    saved = Workdir(tmp_path / "run").config()
    assert saved["teacher"]["step"] == 0 and len(saved["teacher"]["parameters"]) == 16
    # Readers of the run do not need the teacher.
    saved_experiment = load_experiment(tmp_path / "run")
    assert load_params(saved_experiment, tmp_path / "run")[1] == 2 and saved_experiment.learner.frozen_shapes == {}
    flops = make_experiment(config).train_step_flops
    assert flops < with_teacher(make_experiment(config)).train_step_flops < 2 * flops


@pytest.mark.slow
def test_a_weight_of_0_is_no_teacher_bit_for_bit(corpus, teachers, tmp_path):
    teacher = {"distillation__teacher": str(teachers / "decoder_only")}
    printed = train(fields(corpus, "clm", "decoder_only", **teacher, distillation__weight=0.0), tmp_path / "zero")
    assert "is not loaded, because distillation.weight=0.0" in printed
    train(fields(corpus, "clm", "decoder_only"), tmp_path / "none")
    zero, none = (array_checksums(tmp_path / name, 2) for name in ("zero", "none"))
    assert zero == none
    losses = [[line["loss"] for line in metrics(tmp_path / name, "train")] for name in ("zero", "none")]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_continued_run_has_the_same_teacher_and_equals_the_uninterrupted_one(corpus, teachers, tmp_path):
    shutil.copytree(teachers / "decoder_only", tmp_path / "teacher")
    teacher = {"distillation__teacher": str(tmp_path / "teacher"), "train__steps": 4, "model__dropout_rate": 0.1}
    config = fields(corpus, "clm", "decoder_only", **teacher)
    train(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "4")
    # The teacher may be in another folder, with the same parameters.
    (tmp_path / "teacher").rename(tmp_path / "moved")
    config["distillation"]["teacher"] = str(tmp_path / "moved")
    assert "continuing from step 2" in train(config, tmp_path / "again")
    assert array_checksums(tmp_path / "again", 4) == array_checksums(tmp_path / "run", 4)
    # Other parameters are another teacher.
    shutil.rmtree(tmp_path / "moved")
    save_random_run(load_experiment(teachers / "decoder_only").config, str(tmp_path / "moved"), steps=(3,))
    with pytest.raises(
        ConfigError, match=r"another config \(distillation.teacher.parameters: .* distillation.teacher.step: 0 -> 3\)"
    ) as error:
        train(config, tmp_path / "again")
    assert "\n" not in str(error.value)


def test_epochs_with_a_teacher_are_resolved_to_steps(corpus, teachers, tmp_path):
    teacher = {"distillation__teacher": str(teachers / "decoder_only")}
    one_row = {"train__steps": 0, "train__epochs": 1e-4, "optimizer__warmup_steps": 0}
    config = fields(corpus, "clm", "decoder_only", **teacher, **one_row)
    train(config, tmp_path / "run")
    of_train = metrics(tmp_path / "run", "train")
    assert of_train and all(line["distillation_loss"] > 0 for line in of_train)
    saved = Workdir(tmp_path / "run").config()
    assert saved["train"]["steps"] == len(of_train) and saved["teacher"]["step"] == 0
    assert "distillation.teacher" in train(config, tmp_path / "run")  # the finished run continues with it


@pytest.mark.slow
def test_a_hugging_face_folder_and_electras_generator_are_teachers(corpus, tmp_path):
    pytest.importorskip("transformers")
    from tests.huggingface.hub_folders import make_hub_folder

    path = str(make_hub_folder(tmp_path / "llama", "llama", extra_rows=3))
    vocabulary = {f"data__{name}": value for name, value in open_teacher(path).vocabulary.items()}
    teacher = {"distillation__teacher": path, "distillation__divergence": "jensen_shannon"}
    train(fields(corpus, "clm", "decoder_only", **vocabulary, **teacher), tmp_path / "run")
    assert all(line["distillation_loss"] > 0 for line in metrics(tmp_path / "run", "train"))
    assert set(Workdir(tmp_path / "run").config()["teacher"]) == {"parameters"}
    electra = str(make_hub_folder(tmp_path / "electra", "electra"))
    with pytest.raises(ConfigError, match=r"the model of that folder does not predict tokens: choose another one$"):
        open_teacher(electra)

    save_random_run(fields(corpus, "electra", "encoder_only"), str(tmp_path / "pair"))
    config = fields(corpus, "mlm", "encoder_only", distillation__teacher=str(tmp_path / "pair"))
    experiment, [frozen] = load_teacher(make_experiment(config))
    there = load_experiment(tmp_path / "pair")
    model, params = there.learner.language_model(load_params(there, tmp_path / "pair")[0])
    assert experiment.learner.setup.teacher.d_model == model.d_model == 16
    jax.tree.map(np.testing.assert_array_equal, frozen["teacher"], params)


REFUSED = {
    "no folder": ({"teacher": "nowhere"}, r"distillation.teacher=.*nowhere is not the folder of a run: "),
    "another vocabulary": (
        {"data__num_sentinels": 7},
        r"that run has another vocabulary: id \d+ .*: set data.num_sentinels=100 as there, or choose a teacher",
    ),
    "another architecture": (
        {"teacher": "encoder_only"},
        r"encoder_only: model.architecture is 'encoder_only' in that run and 'decoder_only' here, ",
    ),
    "not trained to predict tokens": (
        {"teacher": "classifier"},
        r"objective.name='classification' does not train the ",
    ),
    "as many tokens as there are": ({"distillation__top_k": 512}, r"distillation.top_k=512 must be below 512, "),
    "rows longer than its positions": (
        {"teacher": "short"},
        r"short: data.inputs_length=40 must be at most model.max_length=20, the number of learned positions",
    ),
    "a token is predicted at another position": (
        {"name": "masked_diffusion"},
        r"decoder_only: that run predicts a token where the token before it is read, and here it is predicted at its ",
    ),
    "the next token is not predicted": (
        {"teacher": "in_place"},
        r"in_place: that run predicts a token at its own position, and here it is predicted where the token before it ",
    ),
    "next position unknown": (
        {"name": "sigma_gpt"},
        r"that run has model.target_positions=False and does not know which token of a row is the next one",
    ),
}


@pytest.fixture(scope="session")
def unfit(corpus, tmp_path_factory):
    """The folders of runs that teach no CLM."""
    folder = tmp_path_factory.mktemp("unfit")
    labelled = {"data__source": "jsonl", "data__path": str(corpus / "labelled.jsonl")}
    save_random_run(fields(corpus, "classification", "decoder_only", **labelled), str(folder / "classifier"))
    short = {"data__inputs_length": 20, "data__targets_length": 20, "model__positions": "learned"}
    save_random_run(fields(corpus, "clm", "decoder_only", **short), str(folder / "short"))
    save_random_run(fields(corpus, "masked_diffusion", "decoder_only"), str(folder / "in_place"))
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_does_not_fit_is_one_line_before_the_corpus_is_read(
    corpus, teachers, unfit, case, tmp_path, monkeypatch
):
    overrides, message = REFUSED[case]
    overrides = {"name": "clm", "teacher": "decoder_only"} | overrides
    name, teacher = overrides.pop("name"), overrides.pop("teacher")
    folder = unfit / teacher if (unfit / teacher).exists() else teachers / teacher
    config = fields(corpus, name, "decoder_only", distillation__teacher=str(folder), **overrides)
    if case == "as many tokens as there are":
        size = make_experiment(config).model.vocab_size
        config["distillation"]["top_k"], message = size, message.replace("512", str(size))
    monkeypatch.setattr(loop, "make_run", lambda *_, **__: pytest.fail("the corpus is read"))
    with pytest.raises(ConfigError, match=message) as error:
        train(config, tmp_path / "run")
    assert "\n" not in str(error.value)
    weight_0 = {**config["distillation"], "weight": 0.0}
    with pytest.raises(ConfigError, match=message):  # checked, although it takes no part
        with_teacher(make_experiment(config | {"distillation": weight_0}))


def test_a_teacher_with_fewer_types_of_tokens_than_rows_have_is_refused(corpus, tmp_path):
    """RoBERTa has one type; the second sentence of a pair would be NaN."""
    save_random_run(fields(corpus, "mlm", "encoder_only", model__num_token_types=1), str(tmp_path))
    teacher = {"distillation__teacher": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"num_token_types=1, and rows here have tokens of 2 types: choose .* none$"):
        with_teacher(make_experiment(fields(corpus, "nsp", "encoder_only", **teacher)))
    # Other rows have the first type alone, whatever the model's table.
    with_teacher(make_experiment(fields(corpus, "mlm", "encoder_only", model__num_token_types=2, **teacher)))


def test_a_causal_teacher_of_rows_in_both_directions_is_a_warning(corpus, teachers):
    config = fields(corpus, "hybrid", "decoder_only", distillation__teacher=str(teachers / "decoder_only"))
    [warning] = set(with_teacher(make_experiment(config)).warnings) - set(make_experiment(config).warnings)
    assert warning.endswith("reads every row causally, while rows here also see later tokens")


def test_a_teacher_of_rows_of_one_segment_sees_the_segments_of_the_rows_here(corpus, tmp_path):
    whole = fields(corpus, "clm", "decoder_only", data__documents="join")
    save_random_run(whole, str(tmp_path / "teacher"))
    taught = {}
    for documents in ("join", "pack"):
        teacher = {"distillation__teacher": str(tmp_path / "teacher"), "data__documents": documents}
        taught[documents] = with_teacher(make_experiment(fields(corpus, "clm", "decoder_only", **teacher)))
    assert load_experiment(tmp_path / "teacher").model.one_segment
    assert {documents: each.learner.setup.teacher.one_segment for documents, each in taught.items()} == {
        "join": True, "pack": False,
    }  # fmt: skip


def test_a_plan_counts_the_teacher(corpus, teachers):
    config = fields(corpus, "clm", "decoder_only", distillation__teacher=str(teachers / "decoder_only"))
    topology = parse_topology("cpu:4")
    plain, taught = (estimate(make(make_experiment(config)), topology) for make in (lambda x: x, with_teacher))
    teacher = load_experiment(teachers / "decoder_only")
    size, of_row = teacher.num_params, teacher.learner.forward_flops(40, 40)
    assert plain.teacher_bytes == 0 and taught.teacher_bytes == 4 * size
    assert taught.flops == plain.flops + config["train"]["batch_size"] * of_row
    assert taught.state_bytes == plain.state_bytes
    assert taught.total_bytes >= plain.total_bytes + 4 * size
