"""The dial of sizes: every size builds for every architecture, with the parameters that its table states."""

import importlib

import pytest

from command.flags import resolve
from configs import base, clm, hybrid, mlm, sizes, span_corruption
from experiment.experiment import make_experiment
from tests import table as table_of_objectives

CONFIGS = {"clm.py": clm, "mlm.py": mlm, "span_corruption.py": span_corruption}  # one for each architecture


def table() -> dict[str, dict[str, str]]:
    """The table of the docstring: size -> column -> cell, without `base`."""
    lines = [line.strip("| ").split(" | ") for line in sizes.__doc__.splitlines() if line.startswith("|")]
    columns, _, *rows = lines
    return {row[0].split()[0]: dict(zip(columns, row, strict=True)) for row in rows if row[0] != "base"}


def test_the_table_has_every_size():
    assert {*table(), "tiny"} == {*sizes.DIAL}


@pytest.mark.parametrize("size", table())
@pytest.mark.parametrize("name", CONFIGS)
def test_a_size_has_the_shape_rate_batch_and_parameters_of_the_table(name, size):
    row, config, tiny = table()[size], CONFIGS[name].get_config(size), CONFIGS[name].get_config()
    experiment = make_experiment(config.to_dict())
    layers, *shape = map(int, row["layers, width, heads, feed-forward"].split(", "))
    model = experiment.model
    assert [model.d_model, model.num_heads, model.d_ff] == shape and model.head_dim * model.num_heads == model.d_model
    assert model.num_layers * (2 if model.architecture == "encoder_decoder" else 1) == layers
    assert f"{experiment.num_params / 1e6:.2f}M" == row[name]
    assert config.optimizer.learning_rate == float(row["rate"].strip("x ")) * tiny.optimizer.learning_rate
    assert config.train.batch_size == int(row["rows"].strip("x ")) * tiny.train.batch_size


def test_the_configs_whose_tiny_preset_has_another_rate_or_batch_are_named():
    usual = {"rms_scaled_adamw": 2e-2, "adamw": 2e-3}
    tiny = {name: importlib.import_module(f"configs.{name}").get_config() for name in table_of_objectives.CONFIGS}
    rates = {name for name, config in tiny.items() if config.optimizer.learning_rate != usual[config.optimizer.name]}
    rows = {name for name, config in tiny.items() if config.train.batch_size not in (8, 16)}
    assert rates == {"classification"} and rows == {"simcse", "sft", "teacherless"}
    assert all(f"{name}.py" in sizes.__doc__ for name in rates | rows)


@pytest.mark.parametrize(("size", "layers"), [("xs", (1, 1)), ("m", (3, 2)), ("l", (4, 2))])
def test_a_size_scales_the_layers_of_both_stacks(size, layers):
    config = base.get_config()
    config.model.num_decoder_layers = 1
    base.use_size(config, size, {})
    assert (config.model.num_layers, config.model.num_decoder_layers) == layers


def test_a_size_is_a_preset_of_the_command_line_beside_a_variant():
    assert resolve("configs/hybrid.py:xs,causal_focus", {}, "here") == hybrid.get_config("causal_focus,xs").to_dict()
    assert clm.get_config("s") == clm.get_config()
    with pytest.raises(ValueError, match="'xs', 's', 'm', 'l', 'base'"):
        clm.get_config("xl,xs")
    with pytest.raises(ValueError, match="several sizes"):
        base.split_preset("xs,m", {}, {"a": {}})
