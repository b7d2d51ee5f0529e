"""Every preset fits a machine without overrides: those above base the machine that they are made for, and those that
are sharded 64 chips of v5p too.

Presets up to base, and those without a machine, fit one host with four TPUs v5e, and one H100.
"""

import importlib

import pytest

from cluster.devices import CHIPS
from configs import machines
from configs.sizes import DIAL
from experiment.experiment import make_experiment
from plan.estimate import Topology, estimate, parse_topology, with_pool
from run.memory import resolve_memory
from tests.table import CONFIGS, presets_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("traced_once")]  # the estimate needs what the choice traced

V5E_HOST = Topology("v5e:2x2", 4, CHIPS["v5e"], ())  # without a compiler
V5P_CUBE = Topology("v5p:4x4x4", 64, CHIPS["v5p"], ())
H100 = Topology("h100:1", 1, with_pool(CHIPS["h100"], 0.75), ())


def sizes_of(config, *without):
    """The sizes of configs/<config>.py, without some, and without those of the dial, which have no machine."""
    variants = getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", {})
    return [size for size in presets_of(config) if size not in ("tiny", *DIAL, *without, *variants)]


# The variants whose batches or rows differ from those of the first variant.
PRESETS = [(config, size) for config in CONFIGS for size in sizes_of(config, "small", "base")]
PRESETS += [("mlm", "large,roberta"), ("ul2", "large,packed"), ("ul2", "xxl,packed"), ("ul2", "20b,packed")]
PRESETS += [("multi_token_prediction", "70b,sequential"), ("simcse", "large,with_mlm")]
SMALL_PRESETS = [(config, size) for config in CONFIGS for size in sizes_of(config) if size in ("small", "base")]
SMALL_PRESETS += [("mlm", "base,roberta"), ("ul2", "base,packed"), ("simcse", "base,with_mlm")]
SMALL_PRESETS += [("multi_token_prediction", "base,sequential"), ("classification", "large")]


def machine_of(size):
    """The topology of a size's machine, without a compiler: memory is estimated from shapes, as on a GPU."""
    name = machines.topology_of(size)
    if name == "v5p:4x4x4":
        return V5P_CUBE
    topology = parse_topology(name)
    return Topology(name, topology.num_devices, with_pool(topology.chip, 0.75), ())


def experiment_of(config, preset):
    """The preset's experiment, with 50,304 ids."""
    return make_experiment(importlib.import_module(f"configs.{config}").get_config(preset), vocab_size=50_304)


def assert_fits(experiment, topology):
    assert estimate(experiment, topology).fits


@pytest.mark.parametrize(("config", "preset"), PRESETS)
def test_every_preset_above_base_fits_its_machine(config, preset):
    experiment, own = experiment_of(config, preset), machine_of(preset.partition(",")[0])
    is_sharded = experiment.mesh.fsdp == -1
    assert is_sharded == (not experiment.train.grad_accum_steps) or experiment.model.remat == "auto"
    on_cube = is_sharded and experiment.train.batch_size >= V5P_CUBE.num_devices  # a device has a row or more
    for topology in {own, V5P_CUBE} if on_cube else {own}:
        resolved = resolve_memory(experiment, topology.machine)
        assert resolved.warnings == experiment.warnings
        assert_fits(resolved, topology)


@pytest.mark.parametrize(("config", "preset"), SMALL_PRESETS)
def test_every_preset_up_to_base_fits_one_host_of_tpus_and_one_gpu(config, preset):
    experiment = experiment_of(config, preset)
    assert (experiment.model.remat, experiment.train.grad_accum_steps) == ("auto", 0)
    for topology in (V5E_HOST, H100):
        resolved = resolve_memory(experiment, topology.machine)
        assert resolved.warnings == experiment.warnings
        assert_fits(resolved, topology)


def test_the_presets_are_found():
    assert {"large", "xl", "xxl", "20b"} == set(sizes_of("ul2", "small", "base"))
    assert {"7b", "13b", "70b"} < set(sizes_of("clm")) and len(PRESETS) > 40
    assert {config for config, preset in SMALL_PRESETS if preset == "base"} == set(CONFIGS)
