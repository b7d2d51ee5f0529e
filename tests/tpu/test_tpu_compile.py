"""Every config's `base` preset, compiled by the TPU compiler for a host of four v5e chips, without a TPU.

Needs libtpu, and is skipped without it: pip install -e '.[test,tpu]' && pytest -n0 tests/tpu. Takes minutes.
"""

import importlib

import jax
import pytest

from cluster.devices import GIB, chip_of
from experiment.experiment import make_experiment
from plan.estimate import estimate, parse_topology
from tests.table import CONFIGS, small_config

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install -e '.[tpu]'")


@pytest.fixture(autouse=True)
def low_compilation_effort():
    """Makes the compiler optimize less. Its requirements on a program are the same."""
    option = "jax_exec_time_optimization_effort"
    before = getattr(jax.config, option)
    jax.config.update(option, -1.0)
    yield
    jax.config.update(option, before)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_base_preset_compiles_for_a_tpu(config):
    """With 8 rows, without accumulation and with two layers instead of twelve, which compile faster.

    The body of the scan over layers is the same program, so neither change affects whether the step compiles.
    """
    fields = importlib.import_module(f"configs.{config}").get_config("base").to_dict()
    fields["train"] |= {"batch_size": 8, "grad_accum_steps": 1}
    fields["model"] |= {"num_layers": 2, "remat": "none"}
    plan = estimate(make_experiment(fields, vocab_size=32100), parse_topology("v5e:2x2"))
    assert not plan.compiled.refused and plan.total_bytes > plan.parameter_bytes > 1e6
    assert plan.compiled.collectives, "four chips with rows of one batch must sum their gradients"


def sharded_plan(name, architecture):
    """The plan of two layers of width 512, in bfloat16, sharded over four chips."""
    fields = small_config(name, architecture, mesh__data=1, mesh__fsdp=-1)
    fields["model"] |= {"d_model": 512, "d_ff": 1024, "num_heads": 4, "num_kv_heads": 4, "head_dim": 128}
    fields["data"] |= {"inputs_length": 256, "targets_length": 256}
    fields["precision"] = "bfloat16"
    return estimate(make_experiment(fields), parse_topology("v5e:2x2"))


def test_split_parameters_are_gathered_and_their_gradients_scattered():
    """CLM, two layers of width 512, in bfloat16.

    Every matrix is gathered in the forward and in the backward pass; activations are gathered too. The gradient of a
    joined query-key-value kernel would be added up whole: 6 MiB in float32.
    """
    plan = sharded_plan("clm", "decoder_only")
    matrices = 2 * 2 * (4 * 512 * 512 + 3 * 512 * 1024)  # bytes of both layers
    assert 2 * matrices <= plan.compiled.collectives["all-gather"] < 3 * matrices
    assert 0 < plan.compiled.collectives["reduce-scatter"] < matrices
    assert plan.compiled.collectives["all-reduce"] < 2**18, "norms, and a few scalars"
    step = plan.compiled
    assert plan.total_bytes == sum((step.argument_bytes, step.temporary_bytes, step.result_bytes, step.code_bytes))
    assert abs(step.argument_bytes - plan.parameter_bytes - plan.optimizer_bytes - plan.batch_bytes) < 2**20


@pytest.mark.parametrize(
    ("name", "architecture", "biases"),
    [("span_corruption", "encoder_decoder", 2), ("multi_token_prediction:sequential", "decoder_only", 0)],
)
def test_cross_attention_and_heads_are_gathered_and_their_gradients_scattered(name, architecture, biases):
    """The models of the other presets that are sharded. biases: relative biases, whose gradients are added whole."""
    plan = sharded_plan(name, architecture)
    found, parameters = plan.compiled.collectives, 2 * plan.num_params
    assert 1.8 * parameters <= found["all-gather"] < 3 * parameters
    assert 1.8 * parameters / 4 <= found["reduce-scatter"] < 3 * parameters / 4, "in float32, a quarter for each chip"
    assert found["all-reduce"] < 2**18 + biases * 4 * 4 * 256 * 256, "norms, a few scalars, and 4 heads' biases"
    assert plan.warnings == []


def test_a_program_that_exceeds_the_memory_is_refused_with_its_size():
    """2 GiB of XLA's attention probabilities per layer: 8 heads and 40 rows of 1,280 tokens."""
    fields = small_config("clm", "decoder_only", train__batch_size=40, model__attention="xla")
    fields["model"] |= {"num_layers": 12, "num_heads": 8, "num_kv_heads": 8}
    fields["data"] |= {"inputs_length": 1280, "targets_length": 1280}
    plan = estimate(make_experiment(fields), parse_topology("v5e:1x1"))
    assert plan.compiled.refused and plan.fits is False
    assert plan.total_bytes > plan.topology.chip.usable_bytes
    assert plan.total_bytes == plan.compiled.argument_bytes + plan.temporary_bytes


def test_gradients_alone_cross_the_network_between_slices():
    """Two slices of four chips, which shard the state within a slice."""
    fields = small_config("clm", "decoder_only", mesh__data=2, mesh__fsdp=-1)
    fields["model"] |= {"d_model": 512, "d_ff": 1024, "num_heads": 4, "num_kv_heads": 4, "head_dim": 128}
    plan = estimate(make_experiment(fields), parse_topology("v5e:2x2:2"))
    assert plan.topology.num_slices == 2 and plan.topology.num_devices == 8
    # Each device exchanges its shard of the gradients, and a few scalars of the loss.
    assert plan.parameter_bytes <= plan.compiled.collectives["between-slices"] < 1.1 * plan.parameter_bytes


@pytest.mark.parametrize(("name", "gib"), [("tpu7x:2x2x1", 94.75), ("v4:2x2x1", 15.25)])
def test_a_chip_of_two_devices(name, gib):
    """What the compiler refuses more than: "exceeds available HBM (94.75G)"."""
    topology = parse_topology(name)
    assert topology.num_devices == len(topology.devices) == 8 and topology.platform == "tpu"
    assert topology.chip.usable_bytes == gib * GIB
    assert chip_of(topology.devices[0].device_kind).name == topology.chip.name


def test_a_step_compiles_for_a_chip_of_two_devices():
    plan = estimate(make_experiment(small_config("clm", "decoder_only")), parse_topology("tpu7x:2x2x1"))
    assert not plan.compiled.refused and plan.fits and plan.mesh["data"] == 8


def test_the_costs_of_a_step():
    """Two layers of width 512, and 4 rows of 256: matrices of 9.4M parameters, which the step reads and updates."""
    fields = small_config("clm", "decoder_only", train__batch_size=4)
    fields["model"] |= {"d_model": 512, "d_ff": 1024, "num_heads": 4, "num_kv_heads": 4, "head_dim": 128}
    fields["data"] |= {"inputs_length": 256, "targets_length": 256}
    plan = estimate(make_experiment(fields), parse_topology("v5e:1x1"), with_costs=True)
    found = plan.compiled.costs
    chip = plan.topology.chip
    # v5e: 197 TFLOP/s at 1.5 GHz are 131,000 FLOPs a cycle, and these products, of float32, are far from that.
    assert found["matrix products"].cycles > plan.flops / chip.peak_flops * 1.5e9
    assert sum(cost.bytes for cost in found.values()) >= 2 * plan.state_bytes
    assert all(0 <= cost.padding_bytes <= cost.bytes for cost in found.values())
