"""Starting with another run's Transformer: the same arrays, or one line that names what differs."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from learners.electra import SHARED
from run.compiled_run import make_run
from run.restore import language_model, load_experiment, load_params
from tests.models import tiny
from tests.table import reads_corpus, small_config
from tests.train.small_runs import save_random_run
from train.init_from import _check_meaning, start_from
from train.loop import train_and_evaluate
from workdir.checkpoint import Checkpoints
from workdir.run_config import read_config, write_config
from workdir.workdir import Workdir


def fields(corpus, name="clm", architecture="decoder_only", **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config(name, architecture, **(text | overrides))


def initial(run):
    """Zeros, because initializers take seconds to compile."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), run.state_shapes.params)


@pytest.fixture
def clm(trained_run):
    """The workdir of a causal language model, trained for four steps."""
    return str(trained_run("decoder_only"))


def test_another_objective_starts_with_the_arrays_of_the_newest_checkpoint(corpus, clm):
    run = make_run(make_experiment(fields(corpus, "fim")), show_progress=False)
    before = initial(run)
    params, lines = start_from(run, before, clm)
    saved, step = load_params(load_experiment(clm), clm)
    count = sum(leaf.size for leaf in jax.tree.leaves(saved))
    assert step == 4 and lines == [
        f"     start  parameters of {clm}, step 4",
        f"    copied  {count:,} parameters in {len(jax.tree.leaves(saved))} arrays",
    ]
    jax.tree.map(np.testing.assert_array_equal, params, saved)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), params, before)))


def test_the_loop_starts_there_once_and_then_continues_its_own_run(corpus, clm, tmp_path, capsys):
    config = fields(corpus, "clm", train__init_from=clm, optimizer__learning_rate=1e-12, train__steps=2)
    train_and_evaluate(make_experiment(config), str(tmp_path / "tuned"))
    line = f"     start  parameters of {clm}, step 4\n"
    printed, workdir = capsys.readouterr().out, Workdir(tmp_path / "tuned")
    assert line in printed and "eval at step 0:" in printed
    saved = load_params(load_experiment(clm), clm)[0]
    tuned = load_params(load_experiment(tmp_path / "tuned"), tmp_path / "tuned")[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), tuned, saved)
    train_and_evaluate(make_experiment(config), str(tmp_path / "tuned"))
    assert Checkpoints(tmp_path / "tuned" / "checkpoints", keep=None).latest_step() == 2
    printed = capsys.readouterr().out
    assert "continuing from step 2" in printed and line not in printed and "eval at step 0" not in printed
    before, after = workdir.metrics("eval")  # also after the run has continued
    assert (before["step"], before["raw_tokens"], after["step"]) == (0, 0, 2)
    assert before["loss"] == pytest.approx(after["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("mlm", "encoder_only"), ("electra", "encoder_only"), ("ul2", "encoder_decoder"), ("bart", "encoder_decoder")],
)
def test_classification_starts_with_the_transformer_of_other_learners(corpus, tmp_path, name, architecture):
    """ELECTRA's encoder is its discriminator's, whose output head is a new one."""
    model = {"model__tie_embeddings": True, "model__prediction_head": "bert"} if architecture == "encoder_only" else {}
    save_random_run(fields(corpus, name, architecture, **model), str(tmp_path))
    pretrained = load_experiment(tmp_path)
    saved = load_params(pretrained, tmp_path)[0]["transformer"]

    config = fields(corpus, "classification", architecture, **model, **reads_corpus("classification", corpus))
    if architecture == "encoder_decoder":
        config["model"], config["data"]["targets_length"] = pretrained.config["model"], 1
    run = make_run(make_experiment(config), show_progress=False)
    before = initial(run)
    params, lines = start_from(run, before, str(tmp_path))
    head = ["prediction_head"] if name == "electra" else []  # a new one
    assert not set(head) & set(saved)
    assert lines[2].startswith("       new  ") and all(module in lines[2] for module in ["classifier", *head])
    assert params["classifier"] is before["classifier"]
    assert jax.tree.structure(params) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, {name: params["transformer"][name] for name in saved}, saved)


def test_the_embeddings_that_the_generator_gets_are_not_named_as_new(corpus, tmp_path):
    model = {"model__tie_embeddings": True, "model__prediction_head": "bert"}
    save_random_run(fields(corpus, "mlm", "encoder_only", **model), str(tmp_path))
    config = fields(corpus, "electra", "encoder_only", **model, objective__embedding_sharing="gdes")
    run = make_run(make_experiment(config), show_progress=False)
    params, lines = start_from(run, before := initial(run), str(tmp_path))
    table = params["generator"]["token_embedder"]["embedding"]
    saved = load_params(load_experiment(tmp_path), tmp_path)[0]["transformer"]
    np.testing.assert_array_equal(table, saved["token_embedder"]["embedding"])
    embeddings = sum(leaf.size for name in SHARED for leaf in jax.tree.leaves(params["generator"].get(name)))
    others = ("generator", "discriminator_head")
    total = sum(leaf.size for name in others for leaf in jax.tree.leaves(before[name]))
    assert lines[2].startswith(f"       new  {total - embeddings:,} parameters: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__d_ff": 56},
            r"train.init_from=.*: model.d_ff=56 must be a multiple of 48, the number there",
        ),
        (
            {"model__qk_norm": True},
            r"train.init_from=.*self_attention/key_norm/scale is missing in that run and float32\[2, 16\] here,",
        ),
        (
            {"name": "prefix_lm", "architecture": "encoder_decoder"},
            r"train.init_from=.* more arrays differ: set the fields of model as there",
        ),
    ],
)
def test_a_transformer_with_other_arrays_is_refused_in_one_line(corpus, clm, overrides, message):
    run = make_run(make_experiment(fields(corpus, **overrides)), show_progress=False)
    with pytest.raises(ConfigError, match=message) as error:
        start_from(run, initial(run), clm)
    assert len(str(error.value).splitlines()) == 1


def test_a_run_is_read_with_an_attention_kernel_for_this_machine(clm, tmp_path):
    config = read_config(clm)
    config["model"]["attention"] = "splash"
    write_config(tmp_path, config)
    experiment = load_experiment(tmp_path)
    assert experiment.model.attention == "auto"
    params = jax.eval_shape(lambda: experiment.learner.init_params(jax.random.key(0)))
    assert language_model(experiment, params)[0].model.attention == "xla"


@pytest.mark.parametrize(
    ("positions", "field", "value"),
    [
        ("relative", "mlp", "gated_silu"),
        ("relative", "relative_num_buckets", 16),
        ("relative", "relative_max_distance", 20),
        ("relative", "positions", "rope"),
        ("relative", "norm", "layer"),
        ("relative", "norm_position", "post"),
        ("relative", "norm_epsilon", 1e-5),
        ("relative", "head_dim", 8),
        ("relative", "scale_attention", True),
        ("relative", "attention_softcap", 5.0),
        ("relative", "head_norms", "qkvo"),
        ("relative", "logits_softcap", 5.0),
        ("rope", "rope_theta", 50.0),  # that there is 100
        ("rope", "rope_scaling_factor", 2.0),  # that there is 4
        ("rope", "rope_original_length", 4096),
        ("rope", "partial_rotary_factor", 0.4),
    ],
)
def test_a_field_with_which_the_same_arrays_compute_something_else_is_named(positions, field, value):
    there = tiny.config(positions=positions, rope_scaling_factor=4.0)
    origin = types.SimpleNamespace(where="train.init_from=x", kind="run", model=there)
    _check_meaning(origin, there)
    with pytest.raises(ConfigError, match=rf"^train.init_from=x: model\.{field} is .* would compute something else"):
        _check_meaning(origin, dataclasses.replace(there, **{field: value}))


def test_a_larger_base_of_rotary_positions_is_a_start():
    there = tiny.config(positions="rope")
    origin = types.SimpleNamespace(where="train.init_from=x", kind="run", model=there)
    _check_meaning(origin, dataclasses.replace(there, rope_theta=1000.0, local_rope_theta=2e5))
    _check_meaning(origin, dataclasses.replace(there, rope_scaling_factor=8.0, rope_original_length=5))
    of_decoder = types.SimpleNamespace(
        **vars(origin) | {"model": dataclasses.replace(there, architecture="decoder_only")}
    )
    with pytest.raises(ConfigError, match=r"model\.parallel_residual is False in that run and True here"):
        _check_meaning(of_decoder, dataclasses.replace(of_decoder.model, parallel_residual=True))
