"""Every preset above base fits its machine without overrides."""

import importlib

import pytest

from configs import machines
from tests.table import CONFIGS, presets_of
from train.experiment import make_experiment
from train.hardware import CHIPS
from train.plan.estimate import estimate
from train.plan.topology import Topology, parse_topology, with_pool


def sizes_of(config):
    """The sizes above base of configs/<config>.py."""
    variants = getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", {})
    return [size for size in presets_of(config) if size not in ("tiny", "small", "base", *variants)]


# The variants whose batches or rows differ from those of the first variant.
PRESETS = [(config, size) for config in CONFIGS for size in sizes_of(config)]
PRESETS += [("mlm", "large,roberta"), ("ul2", "large,packed"), ("ul2", "xxl,packed"), ("ul2", "20b,packed")]
PRESETS += [("multi_token_prediction", "70b,sequential"), ("simcse", "large,with_mlm")]


def machine_of(size):
    """The topology of a size's machine, without a compiler: memory is estimated from shapes, as on a GPU."""
    name = machines.topology_of(size)
    if name == "v5p:4x4x4":
        return Topology(name, 64, CHIPS["v5p"], ())
    topology = parse_topology(name)
    return Topology(name, topology.num_devices, with_pool(topology.chip, 0.75), ())


@pytest.mark.parametrize(("config", "preset"), PRESETS)
def test_every_preset_above_base_fits_its_machine(config, preset):
    fields = importlib.import_module(f"configs.{config}").get_config(preset).to_dict()
    plan = estimate(make_experiment(fields, vocab_size=50_304), machine_of(preset.partition(",")[0]))
    # A microbatch's gradients are added to those of the earlier ones, which takes their memory twice.
    sums = plan.parameter_bytes if fields["train"]["grad_accum_steps"] > 1 else 0
    assert plan.fits and plan.total_bytes + sums <= plan.topology.chip.usable_bytes


def test_the_presets_above_base_are_found():
    assert {"large", "xl", "xxl", "20b"} == set(sizes_of("ul2"))
    assert {"7b", "13b", "70b"} < set(sizes_of("clm")) and len(PRESETS) > 40
