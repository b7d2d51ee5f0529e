"""Planning a run: FLOPs and bytes by hand, what is said of them, and the real TPU compiler where it is installed."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from objectives.errors import ConfigError
from tests.table import small_config
from tests.train.subprocesses import run_main
from train.experiment import make_experiment
from train.flops import train_step_flops
from train.hardware import CHIPS, GIB, chip_of
from train.hlo import collective_bytes
from train.plan_estimate import estimate
from train.plan_remedy import find_remedy
from train.plan_report import report_lines
from train.topology import Topology, parse_topology


def test_flops_of_a_decoder_by_hand():
    """2 layers, D 32, 2 heads of 16, F 48 ungated or gated, V 256, rows of 40."""
    model = make_experiment(small_config("clm", "decoder_only")).model
    length, matrices = 40, 3 if model.mlp.startswith("gated_") else 2
    projections = 4 * 2 * length * 32 * 32
    scores = 2 * (2 * length * length * 32)
    layer = projections + scores + matrices * 2 * length * 32 * 48
    expected = 3 * 5 * (2 * layer + 2 * length * 32 * model.vocab_size)
    assert train_step_flops(model, rows=5, inputs_length=length, targets_length=0) == expected


def test_flops_are_what_xla_counts_of_the_products():
    """An encoder-decoder's forward pass, one layer a stack so that no loop hides any; elementwise work comes on top."""
    fields = small_config("span_corruption", "encoder_decoder", model__num_layers=1, model__d_model=256)
    experiment = make_experiment(fields)
    learner, batch = experiment.learner, _zeros_batch()
    params = jax.eval_shape(learner.init_params, jax.random.key(0))

    def loss(params, batch):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[0]

    counted = jax.jit(loss).lower(params, batch).cost_analysis()["flops"]
    ours = train_step_flops(experiment.model, rows=2, inputs_length=40, targets_length=40) / 3
    assert ours == pytest.approx(counted, rel=0.1) and ours < counted


def _zeros_batch():
    tokens = jnp.zeros((2, 40), jnp.int32)
    sides = {
        f"{side}_{name}": tokens
        for side in ("encoder", "decoder")
        for name in ("input_tokens", "segment_ids", "positions")
    }
    return sides | {
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": jnp.zeros((2, 40)),
        "example_source": tokens,
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
    ],
)
def test_chips_by_what_jax_calls_them(kind, name):
    assert chip_of(kind) == CHIPS[name]


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "NVIDIA L40S", "Radeon"])
def test_chips_that_are_not_known_have_no_peak(kind):
    assert chip_of(kind) is None


HLO = """
HloModule jit_step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body.1 (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %gathered = f32[16,4]{1,0} all-gather(%x), dimensions={0}
}

%below_5 (arg: (s32[], f32[8,4])) -> pred[] {
  %five = s32[]{:T(128)} constant(5)
  %counter = s32[]{:T(128)} get-tuple-element(%arg), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%counter, %five), direction=LT, metadata={op_name="lt"}
}

%body.2 (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %moved = s8[3]{0} collective-permute(%x), source_target_pairs={{0,1}}
}

%fused (p: f32[4]) -> f32[4] {
  ROOT %scattered = bf16[2,4]{1,0} reduce-scatter(%p), to_apply=%add
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = (s32[], f32[8,4]) while(%t), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"12"}}
  %other = (s32[], f32[8,4]) while(%t), condition=%below_5, body=%body.2, metadata={op_name="while"}
  %sums = (f32[10]{0}, f32[6]{0}) all-reduce(%a, %b), to_apply=%add
  %start = (f32[4]{0}, f32[32]{0}) all-gather-start(%p)
  %called = f32[4] call(%p), to_apply=%fused
}
"""


def test_collectives_count_as_often_as_their_loop_runs():
    assert collective_bytes(HLO) == {
        "all-gather": 12 * 16 * 4 * 4 + 32 * 4,
        "all-reduce": 16 * 4,
        "reduce-scatter": 2 * 4 * 2,
        "collective-permute": 5 * 3,
    }


def small_plan(chip=None, devices=4, **overrides):
    experiment = make_experiment(small_config("span_corruption", "encoder_decoder", **overrides))
    return estimate(experiment, Topology("some:4", devices, chip, ()))


def test_bytes_by_shapes_are_those_of_the_shards():
    whole, split = small_plan(), small_plan(mesh__data=1, mesh__fsdp=4, optimizer__name="adamw")
    assert whole.parameter_bytes == 4 * whole.num_params
    assert whole.positions_per_step == 8 * (40 + 40)
    # Matrices are split, norms and the relative bias are not; Adam's moments are two more copies.
    assert split.parameter_bytes == pytest.approx(whole.parameter_bytes / 4, rel=0.1)
    assert split.optimizer_bytes == pytest.approx(2 * split.parameter_bytes, rel=0.01)
    assert whole.batch_bytes * 4 == 8 * 40 * 9 * 4
    assert whole.fits is None and whole.roofline_seconds is None


def test_a_fused_kernel_keeps_its_inputs_and_its_result_and_no_scores():
    """Of 4 rows of 512, a chip's 1; 2 layers. XLA's attention keeps each layer's scores and probabilities."""
    overrides = {"data__inputs_length": 512, "model__positions": "rope", "train__batch_size": 4}

    def plan_of(chip, **more):
        fields = small_config("clm", "decoder_only", **overrides, **more) | {"precision": "bfloat16"}
        return estimate(make_experiment(fields), Topology("some:4", 4, chip, ()))

    fused, whole = plan_of(CHIPS["h100"]), plan_of(CHIPS["h100"], model__attention="xla")
    assert (fused.attention[0], whole.attention) == ("cudnn", ("xla", "asked for"))
    heads = 2
    assert whole.activation_bytes - fused.activation_bytes > 2 * heads * 512 * 512 * 2
    assert plan_of(CHIPS["v5e"]).attention[0] == "splash"
    assert plan_of(CHIPS["t4"]).attention == ("xla", "there is no other on gpu")
    assert any("attention          cudnn (" in line for line in report_lines("configs/some.py", fused))
    with pytest.raises(ConfigError, match=r"^config.model.attention='cudnn' must be .* here: cudnn needs an NVIDIA"):
        plan_of(CHIPS["v5e"], model__attention="cudnn")


def test_remat_accumulation_and_more_devices_keep_fewer_activations():
    plain = small_plan().activation_bytes
    assert small_plan(model__remat="full").activation_bytes < plain / 2
    assert small_plan(train__grad_accum_steps=2).activation_bytes == pytest.approx(plain / 2, rel=0.1)
    assert small_plan(devices=8).activation_bytes == pytest.approx(plain / 2, rel=0.1)


def test_what_does_not_fit_is_said_with_what_would():
    small = dataclasses.replace(CHIPS["v5e"], memory_bytes=3 * 2**20)
    topology = Topology("small:4", 4, small, ())
    fields = small_config("span_corruption", "encoder_decoder", model__num_layers=4)

    def plan_of(fields):
        return estimate(make_experiment(fields), topology)

    plan = plan_of(fields)
    assert plan.fits is False
    lines = list(report_lines("configs/some.py", plan))
    assert f"no, {(plan.total_bytes - 3 * 2**20) / GIB:.2f} GiB too much" in lines[-1]
    assert "--config.model.remat=full" in find_remedy(fields, topology, plan_of)
    tiny = dataclasses.replace(topology, chip=dataclasses.replace(small, memory_bytes=1))

    def never(fields):
        return estimate(make_experiment(fields), tiny)

    assert "a larger topology" in find_remedy(fields, tiny, never)


def test_roofline_is_the_slower_of_arithmetic_and_memory():
    chip = dataclasses.replace(CHIPS["v5e"], peak_flops=1e12, memory_bandwidth=1e30)
    plan = small_plan(chip)
    assert plan.roofline_seconds == pytest.approx(plan.flops / 4 / 1e12)
    plan = small_plan(dataclasses.replace(chip, peak_flops=1e30, memory_bandwidth=1e6))
    state = 2 * (plan.parameter_bytes + plan.optimizer_bytes)
    assert plan.roofline_seconds == pytest.approx((state + plan.batch_bytes) / 1e6)


@pytest.mark.parametrize("name", ["v5e", "v5e:4", "v5e:4x4x4", "v7:2x2", "gpu:2x2", "h100:0", "cpu:", "h100:eight"])
def test_unknown_topologies_are_one_line(name):
    with pytest.raises(ConfigError, match=f"--topology={name} is not known: use v5e:AxB"):
        parse_topology(name)


def test_a_mesh_that_does_not_fit_the_topology_is_one_line():
    with pytest.raises(ConfigError, match="the product must be the number of devices, 4"):
        small_plan(mesh__data=3)


def test_the_command_prints_a_plan(tmp_path):
    status, out, err = run_main("--config=configs/ul2.py:base", "--topology=h100:8", "--vocab_size=32100",
                                "--config.model.remat=full", module="train.plan")  # fmt: skip
    assert (status, err) == (0, "")
    assert "247.6M" in out and "by shapes, not compiled" in out and "fits               yes" in out


@pytest.mark.parametrize("arguments", [["--topology=v99:1"], ["--topology=cpu:3"], []])
def test_the_commands_errors_are_one_line(arguments):
    status, out, err = run_main("--config=configs/ul2.py", *arguments, module="train.plan")
    assert status == 1 and err.startswith("error: ") and len(err.splitlines()) == 1 and not out


def test_peaks_are_positive_and_plausible():
    for chip in CHIPS.values():
        assert 1e13 < chip.peak_flops < 1e16 and chip.memory_bytes > 10 * GIB and math.isfinite(chip.memory_bandwidth)


@pytest.mark.parametrize("name", ["electra", "nsp", "simcse", "sft"])
def test_objectives_with_a_learner_or_columns_of_their_own_are_planned(name):
    fields = small_config(name, "decoder_only" if name == "sft" else "encoder_only")
    plan = estimate(make_experiment(fields), Topology("cpu:1", 1, None, ()))
    assert plan.activation_bytes > 0 and plan.parameter_bytes == 4 * plan.num_params
