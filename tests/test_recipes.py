"""Facts of the published training recipes that the configs' presets beyond tiny must have."""

import importlib

import jax
import pytest

from experiment.experiment import make_experiment
from experiment.optimizer import decay_mask
from models.parameters import leaf_name
from tests.table import presets_of


def config_of(name, preset):
    return importlib.import_module(f"configs.{name}").get_config(preset)


def published(name):
    """The sizes of a config, without tiny; with a variant where the variant changes the recipe."""
    sizes = {"small", "base", "medium", "large", "xl", "xxl", "20b", "7b", "13b", "70b"}
    return [preset for preset in presets_of(name) if preset in sizes]


T5 = ["span_corruption", "iid_denoising", "prefix_lm", "deshuffling", "ul2"]
BERT = ["mlm", "nsp", "sop", "unilm", "electra", "bart"]


@pytest.mark.parametrize("name", T5)
def test_t5s_recipe_does_not_clip_the_global_norm(name):
    for preset in published(name):
        optimizer = config_of(name, preset).optimizer
        assert (optimizer.name, optimizer.clip_norm, optimizer.weight_decay) == ("adafactor", 0.0, 0.0), preset


@pytest.mark.parametrize("name", [*BERT, "classification"])
def test_embeddings_decay_in_berts_recipe_and_norms_and_biases_do_not(name):
    config = config_of(name, "base")
    assert config.optimizer.weight_decay == 0.01
    config.model.update({"d_model": 24, "d_ff": 24, "num_heads": 12, "num_kv_heads": 12, "head_dim": 2})
    shapes = make_experiment(config.to_dict()).params_shapes
    mask = jax.tree_util.tree_leaves_with_path(decay_mask(shapes, config.optimizer.no_decay))
    decays = {leaf_name(path): decay for path, decay in mask}
    exempt = {path.rpartition("/")[2] for path, decay in decays.items() if not decay}
    assert exempt == {"bias", "scale"}
    assert {path.rpartition("/")[2] for path, decay in decays.items() if decay} == {"kernel", "embedding"}
    tables = {path for path in decays if "embedder" in path and path.endswith("/embedding")}
    stacks = ("encoder_", "decoder_") if name == "bart" else ("",)
    positions = {f"{stack}position_embedder" for stack in stacks}
    assert {path.split("/")[1] for path in tables} >= {"token_embedder"} | positions
    assert all(decays[path] for path in tables)


@pytest.mark.parametrize("preset", ["base", "large"])
def test_bart_pretrains_without_label_smoothing(preset):
    config = config_of("bart", preset)
    assert (config.loss.label_smoothing, config.optimizer.clip_norm) == (0.0, 0.1)
    assert config.model.dropout_rate == 0.1


def test_robertas_recipe_does_not_clip():
    assert config_of("mlm", "base,roberta").optimizer.clip_norm == 0.0
    assert (config_of("mlm", "base,roberta").model.mlp, config_of("mlm", "base").model.mlp) == ("exact_gelu", "gelu")
    assert config_of("mlm", "base").optimizer.clip_norm == 1.0


def test_gpt2s_presets_have_gpt2s_initializer_and_llamas_do_not():
    names = {preset: config_of("clm", preset).model.initializer for preset in published("clm")}
    assert names == dict.fromkeys(["base", "small", "medium", "large", "xl"], "gpt2") | dict.fromkeys(
        ["7b", "13b", "70b"], "normal"
    )


def test_simcses_augmentation_is_drawn_for_every_element():
    for preset in ("tiny", "base", "large"):
        model = config_of("simcse", preset).model
        assert (model.dropout_rate, model.dropout_broadcast_positions) == (0.1, False)
