"""Starting from a folder: the fields of model and vocabulary come from there, but for those that are overridden."""

import shutil

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.origin import describe_taken, open_origin, with_origin_fields
from run.restore import load_experiment
from tests.data import tiny_tokenizers
from tests.in_process import run_here
from tests.table import small_config
from tests.train.small_runs import save_random_run
from train import main
from train.init_from import plan_start
from workdir.workdir import Workdir


def fields(corpus, name, architecture, path, **overrides):
    """A config of another shape than every folder's."""
    shape = {"model__d_model": 24, "model__d_ff": 40, "model__num_layers": 1, "model__norm": "layer"}
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config(name, architecture, **(text | shape | {"train__init_from": str(path)} | overrides))


def test_no_path_changes_nothing(corpus):
    config = fields(corpus, "clm", "decoder_only", "")
    assert with_origin_fields(config, {}) == config and not describe_taken(config, config)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fim", "hybrid", "classification"])
def test_a_run_takes_the_fields_of_another_run(corpus, trained_run, name):
    path = trained_run("decoder_only")
    given = fields(corpus, name, "decoder_only", path, model__dropout_rate=0.25, model__attention="xla")
    given["model"]["architecture"] = "encoder_only"
    given["data"].update(num_sentinels=7, mode_tokens=("[A]",))
    config = with_origin_fields(given, {})
    there, here = load_experiment(path), make_experiment(config)
    assert (here.model.dropout_rate, here.model.attention) == (0.25, "xla")
    for field in ("architecture", "d_model", "d_ff", "num_layers", "norm", "norm_epsilon", "mlp", "vocab_size"):
        assert getattr(here.model, field) == getattr(there.model, field), field
    assert here.tokenizer.fingerprint == there.tokenizer.fingerprint and here.vocab == there.vocab
    plan = plan_start(open_origin(str(path)), here)
    assert plan.notes == () and len(plan.conversions) == (name == "hybrid"), "attention opens"
    [line] = describe_taken(given, config)
    for text in (f"of train.init_from={path}: ", "data.num_sentinels=100", "model.d_model=32", "model.norm=rms"):
        assert text in line
    assert "dropout" not in line and "model.max_length" not in line


def test_a_run_chooses_its_parameterization_and_its_dropout(corpus, trained_run):
    """Of the steps alone: the arrays of any model compute the same."""
    path = trained_run("decoder_only")
    overrides = {"model.parameterization": "complete_p", "model.base_d_model": 16, "model.initializer": "t5"}
    overrides |= {"model.attention_dropout": False}
    sections = {field.replace(".", "__"): value for field, value in overrides.items()}
    given = fields(corpus, "clm", "decoder_only", path, optimizer__name="adamw", **sections)
    here = make_experiment(with_origin_fields(given, overrides))
    assert (here.model.parameterization, here.model.base_d_model) == ("complete_p", 16)
    assert not here.model.attention_dropout
    assert plan_start(open_origin(str(path)), here).conversions == ()
    with pytest.raises(ConfigError, match=r"needs model.initializer='t5', not 'normal'"):  # that of the run there
        make_experiment(with_origin_fields(given, {}))


def test_a_field_that_contradicts_the_folder_is_refused(corpus, trained_run):
    path = trained_run("decoder_only")
    config = fields(corpus, "clm", "decoder_only", path)
    with pytest.raises(ConfigError) as error:
        with_origin_fields(config, {"model.norm": "layer"})
    assert str(error.value) == (
        f"--config.model.norm=layer contradicts train.init_from={path}, whose model.norm is 'rms', and no rule "
        "converts it: remove it"
    )
    assert with_origin_fields(config, {"model.d_model": 32})["model"]["d_model"] == 24, "as the command line has set it"


def test_rows_are_at_most_as_long_as_a_table_of_learned_positions(corpus, tmp_path):
    from tests.train.small_runs import save_random_run

    learned = {"model__positions": "learned", "data__inputs_length": 24, "data__targets_length": 24}
    config = fields(corpus, "clm", "decoder_only", "", **learned)
    save_random_run(config, str(tmp_path))
    given = fields(corpus, "clm", "decoder_only", tmp_path)
    config = with_origin_fields(given, {})
    assert (config["model"]["max_length"], config["data"]["inputs_length"]) == (24, 24)
    assert "data.inputs_length=24" in describe_taken(given, config)[0]
    with pytest.raises(ConfigError, match=r"data.inputs_length=40 must be at most model.max_length=24"):
        make_experiment(with_origin_fields(given, {"data.inputs_length": 40}))
    given["model"]["max_length"] = 40
    any_order = fields(corpus, "sigma_gpt", "decoder_only", tmp_path, data__bidirectional_inputs=False)
    experiment = make_experiment(with_origin_fields(any_order, {}))  # the last token is read too
    assert (experiment.model.target_positions, experiment.data.inputs_length) == (True, 23)
    longer = make_experiment(with_origin_fields(given, {"model.max_length": 40}))
    assert longer.model.max_length == longer.data.inputs_length == 40


def test_another_vocabulary_is_refused_or_copied_by_token(corpus, trained_run):
    path = trained_run("decoder_only")
    overrides = {"data.num_sentinels": 90}
    given = fields(corpus, "clm", "decoder_only", path, data__num_sentinels=90)
    experiment = make_experiment(with_origin_fields(given, overrides))
    with pytest.raises(
        ConfigError, match=r"another vocabulary: .* set data.num_sentinels=100 as there, or train.init_"
    ):
        plan_start(open_origin(str(path)), experiment)
    given["train"]["init_from_vocabulary"] = "by_token"
    [note] = plan_start(open_origin(str(path)), make_experiment(with_origin_fields(given, overrides))).notes
    assert "tokens are copied by token, 0 new tokens" in note


def test_a_mask_token_is_appended_to_a_folder_without_one(corpus, tmp_path):
    """MNTP from a Llama: the other rows of the table are its own."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.huggingface.hub_folders import make_hub_folder

    folder = make_hub_folder(tmp_path / "hub", "llama")
    given = fields(corpus, "hybrid:mntp", "decoder_only", folder)
    with pytest.raises(
        ConfigError,
        match=r"MASK., which .*: set data.append_special_tokens=True and train.init_from_vocabulary='by_token'$",
    ):
        make_experiment(with_origin_fields(given, {}))
    given["data"]["append_special_tokens"] = True
    overrides = {"data.append_special_tokens": True}
    experiment = make_experiment(with_origin_fields(given, overrides))
    with pytest.raises(
        ConfigError, match=r"train.init_from_vocabulary='by_token' to copy the rows of the common tokens"
    ):
        plan_start(open_origin(str(folder)), experiment)
    given["train"]["init_from_vocabulary"] = "by_token"
    origin, experiment = open_origin(str(folder)), make_experiment(with_origin_fields(given, overrides))
    assert experiment.vocab.mask >= origin.tokenizer.vocab.size
    _, here, there = plan_start(origin, experiment).slices["token_embedder/embedding"]
    np.testing.assert_array_equal(here, there)
    assert len(here) == origin.tokenizer.vocab.size


@pytest.mark.parametrize(
    ("name", "config", "architecture"),
    [
        ("llama", "clm", "decoder_only"),
        ("gpt2", "sft", "decoder_only"),
        ("t5_v1_0", "ul2", "encoder_decoder"),
        ("modernbert", "mlm", "encoder_only"),
    ],
)
def test_a_run_takes_the_fields_of_a_hugging_face_folder(corpus, tmp_path, name, config, architecture):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.huggingface.hub_folders import make_hub_folder

    folder = make_hub_folder(tmp_path / "hub", name)
    given = fields(corpus, config, architecture, folder)
    if config == "ul2":
        with pytest.raises(ConfigError, match=r"needs the special token \[R\], which data.tokenizer="):
            make_experiment(with_origin_fields(given, {}))
        given = fields(corpus, "span_corruption", architecture, folder)
    origin, experiment = open_origin(str(folder)), make_experiment(with_origin_fields(given, {}))
    plan = plan_start(origin, experiment)
    assert plan.slices == {} and plan.notes == ()
    assert (experiment.model.layers_differ, experiment.model.local_distance) == (
        (True, 3) if name == "modernbert" else (False, 64)
    )
    there = jax.tree.leaves(origin.shapes)
    here = jax.tree.leaves(experiment.params_shapes["transformer"])
    assert [leaf.shape for leaf in here] == [leaf.shape for leaf in there]


@pytest.mark.slow
def test_the_command_needs_no_other_field_and_continues_without_the_folder(corpus, tmp_path):
    pytest.importorskip("sentencepiece")
    origin, workdir = tmp_path / "origin", tmp_path / "run"
    model = tiny_tokenizers.sentencepiece(tmp_path / "a.model")
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    config = small_config("clm", "decoder_only", **text, data__tokenizer=model)
    save_random_run(config, str(origin), steps=(4,))
    Workdir(origin).write_tokenizer(make_experiment(config).tokenizer)
    given = [f"--config.data.path={corpus / 'text'}", f"--config.data.cache_dir={corpus / 'cache'}"]
    command = ["--config=tests/small_config.py:fim,encoder_decoder", *given, f"--config.train.init_from={origin}"]
    command += [f"--workdir={workdir}", "--config.train.trackers=()", "--config.optimizer.cycles=0-2"]
    status, out, err = run_here(main.main, *command)
    assert status == 0, err
    assert f"of train.init_from={origin}: " in out and "model.architecture=decoder_only" in out
    assert f"     start  parameters of {origin}, step 4\n    copied  " in out
    shutil.rmtree(origin)
    status, out, err = run_here(main.main, *command, "--config.train.steps=3")
    assert status == 0 and "continuing from step 2" in out, err
    assert load_experiment(workdir).tokenizer.fingerprint.startswith("sentencepiece:")
