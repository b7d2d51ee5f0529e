"""Planning a run: FLOPs and bytes by hand, what is said of them, and the real TPU compiler where it is installed."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from objectives.errors import ConfigError
from tests.table import small_config
from tests.train.subprocesses import run_main
from train.command import run_command
from train.experiment import make_experiment
from train.flops import train_step_flops
from train.hardware import CHIPS, GIB, chip_of
from train.hlo import collective_bytes
from train.plan_estimate import Compiled, _bytes_needed, estimate
from train.plan_remedy import find_remedy
from train.plan_report import report_lines
from train.topology import Topology, parse_topology


def test_flops_of_a_decoder_by_hand():
    """2 layers, D 32, 2 heads of 16, F 48 ungated or gated, V 256, rows of 40."""
    learner = learner_of("clm", "decoder_only")
    length, matrices = 40, 3 if learner.model.mlp.startswith("gated_") else 2
    projections = 4 * 2 * length * 32 * 32
    scores = 2 * (2 * length * length * 32)
    layer = projections + scores + matrices * 2 * length * 32 * 48
    expected = 3 * 5 * (2 * layer + 2 * length * 32 * learner.model.vocab_size)
    assert train_step_flops(learner, rows=5, inputs_length=length, targets_length=0) == expected


# One layer at 40 positions with D 32 in all heads together and F 48 in two matrices, three for a gated one:
# 8 * 40 * 32 * 32 of projections, 4 * 40 * 40 * 32 of scores and sums, 2 or 3 times 2 * 40 * 32 * 48.
LAYER, GATED_LAYER = 327_680 + 204_800 + 245_760, 327_680 + 204_800 + 368_640
VOCAB = 384  # 3 + 256 bytes + 3 mode tokens + 100 sentinels and the like, in steps of 128


def learner_of(name, architecture, **overrides):
    return make_experiment(small_config(name, architecture, **overrides)).learner


def test_flops_of_electra_by_hand():
    """A generator of half the sizes, logits at 7 of the 40 positions only; a discriminator of the whole ones."""
    learner = learner_of("electra", "encoder_only")
    half_layer = 8 * 40 * 16 * 16 + 4 * 40 * 40 * 16 + 2 * 2 * 40 * 16 * 24  # 245,760
    generator = 2 * 40 * 32 * 16 + 2 * half_layer  # tables as wide as the discriminator's, projected
    predictions = 2 * 7 * (16 * 32 + 32 * VOCAB)  # 7 = 0.15 * 40, rounded up, and one for the example
    discriminator = 2 * LAYER + 2 * 40 * (32 * 32 + 32)
    assert learner.model.vocab_size == VOCAB
    assert learner.forward_flops(40, 0) == generator + predictions + discriminator


def test_flops_of_further_tokens_by_hand():
    """Independent heads: one more layer and one more table each. A module reads one more embedding beside its input."""
    heads = learner_of("multi_token_prediction:independent", "decoder_only")
    module = learner_of("multi_token_prediction:sequential", "decoder_only")
    logits = 2 * 40 * 32 * VOCAB
    assert heads.forward_flops(40, 0) == (2 + 3) * GATED_LAYER + 4 * logits
    assert module.forward_flops(40, 0) == (2 + 1) * GATED_LAYER + 2 * 40 * 64 * 32 + 2 * logits


def test_flops_of_rows_that_are_scored_as_a_whole_by_hand():
    """Every reading is a pass of its own; a pooler and the classes are products at one position."""
    logits, pooler = 2 * 40 * (32 * 32 + 32 * VOCAB), 2 * 32 * 32
    simcse = learner_of("simcse", "encoder_only")
    with_mlm = dataclasses.replace(simcse, objective=dataclasses.replace(simcse.objective, mlm_weight=0.1))
    assert simcse.forward_flops(40, 0) == 2 * (2 * LAYER + pooler)
    assert with_mlm.forward_flops(40, 0) == 2 * (2 * LAYER + pooler) + 2 * LAYER + logits
    assert learner_of("nsp", "encoder_only").forward_flops(40, 0) == 2 * LAYER + logits + pooler + 2 * 32 * 2
    assert learner_of("classification", "encoder_only").forward_flops(40, 0) == 2 * LAYER + pooler + 2 * 32 * 2


def test_flops_are_what_xla_counts_of_the_products():
    """An encoder-decoder's forward pass, one layer a stack so that no loop hides any; elementwise work comes on top."""
    fields = small_config("span_corruption", "encoder_decoder", model__num_layers=1, model__d_model=256)
    experiment = make_experiment(fields)
    learner, batch = experiment.learner, _zeros_batch()
    params = jax.eval_shape(learner.init_params, jax.random.key(0))

    def loss(params, batch):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[0]

    counted = jax.jit(loss).lower(params, batch).cost_analysis()["flops"]
    ours = train_step_flops(learner, rows=2, inputs_length=40, targets_length=40) / 3
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

%begun (p: bf16[4,8]) -> (bf16[4,8], bf16[4,32], s32[2]) {
  %gathered.1 = bf16[4,32]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %begin = (bf16[4,8]{1,0:T(8,128)(2,1)S(1)}, bf16[4,32]{1,0}, s32[2]{0:S(4)}) custom-call(%gathered.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.3 (p: bf16[4,8], q: bf16[4,32]) -> (f32[2,4], bf16[4,32]) {
  %gathered.2 = bf16[4,32]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %both = (f32[2,4]{1,0}, bf16[4,32]{1,0}) tuple(%product, %gathered.2)
}

%ended (p: bf16[4,8]) -> bf16[4,32] {
  %gathered.3 = bf16[4,32]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=9, dimensions={1}
  ROOT %end = bf16[4,32]{1,0} custom-call(%p, %gathered.3), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.8 (a: f32[8,6], b: f32[6,8]) -> (f32[2,6], f32[6,2]) {
  %all-reduce.81 = (f32[8,6]{1,0}, f32[6,8]{1,0}) all-reduce(%a, %b), to_apply=%add
  ROOT %parts = (f32[2,6]{1,0}, f32[6,2]{1,0}) tuple(%x, %y)
}

%wrapped (p: f32[2]) -> f32[8] {
  ROOT %exchanged = f32[8]{0} all-to-all(%p), dimensions={0}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %loop = (s32[], f32[8,4]) while(%t), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"12"}}
  %other = (s32[], f32[8,4]) while(%t), condition=%below_5, body=%body.2, metadata={op_name="while"}
  %sums = (f32[10]{0}, f32[6]{0}) all-reduce(%a, %b), to_apply=%add
  %start = ((f32[4]{0}, f32[2,2]{1,0:T(8,128)}), (f32[32]{0}, f32[16,2]{1,0:T(8,128)})) all-gather-start(%p, %q)
  %done = (f32[32]{0}, f32[16,2]{1,0}) all-gather-done(%start)
  %sums.start = (f32[3]{0}, f32[5]{0}) all-reduce-start(%a, %b), to_apply=%add
  %called = f32[4] call(%p), to_apply=%fused
  %async.1 = (bf16[4,8], bf16[4,32], s32[2]) fusion(%p), kind=kCustom, calls=%begun
  %fusion.468 = (f32[2,4], bf16[4,32]) fusion(%async.1), kind=kCustom, calls=%async_collective_fusion.3
  %async.2 = bf16[4,32] fusion(%fusion.468), kind=kCustom, calls=%ended
  %fusion.282 = (f32[2,6], f32[6,2]) fusion(%a, %b), kind=kCustom, calls=%all-reduce-scatter.8
  %async.3 = ((f32[2]), f32[8], u32[]) async-start(%p), calls=%wrapped
  %async.4 = f32[8] async-done(%async.3), calls=%wrapped
}
"""  # noqa: E501


def test_collectives_count_as_often_as_their_loop_runs():
    assert collective_bytes(HLO) == {
        "all-gather": 12 * 16 * 4 * 4 + (32 + 16 * 2) * 4 + 4 * 32 * 2,  # the asynchronous one, of three fusions, once
        "all-reduce": (16 + 3 + 5) * 4,
        "reduce-scatter": 2 * 4 * 2 + (2 * 6 + 6 * 2) * 4,
        "all-to-all": 8 * 4,
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
    """Of 4 rows of 512, a chip's 1; 2 layers. XLA's attention keeps each layer's probabilities, cuDNN's the mask."""
    overrides = {"data__inputs_length": 512, "model__positions": "rope", "train__batch_size": 4}

    def plan_of(chip, **more):
        fields = small_config("clm", "decoder_only", **overrides, **more) | {"precision": "bfloat16"}
        return estimate(make_experiment(fields), Topology("some:4", 4, chip, ()))

    fused, whole = plan_of(CHIPS["h100"]), plan_of(CHIPS["h100"], model__attention="xla")
    assert (fused.attention[0], whole.attention) == ("cudnn", ("xla", "asked for"))
    layers, heads, bfloat16 = 2, 2, 2
    saved = layers * heads * 512 * 512 * bfloat16 - 512 * 512
    assert whole.activation_bytes - fused.activation_bytes == pytest.approx(saved, rel=0.05)
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
    small = dataclasses.replace(CHIPS["h100"], memory_bytes=3 * 2**20)
    topology = Topology("small:4", 4, small, ())
    fields = small_config("span_corruption", "encoder_decoder", model__num_layers=4)

    def plan_of(fields, topology):
        return estimate(make_experiment(fields), topology)

    plan = plan_of(fields, topology)
    assert plan.fits is False
    lines = list(report_lines("configs/some.py", plan))
    assert f"no, {(plan.total_bytes - 3 * 2**20) / GIB:.2f} GiB too much" in lines[-1]
    assert "--config.model.remat=dots: " in find_remedy(fields, topology, plan_of)
    fields["model"]["remat"] = "dots"
    just_short = dataclasses.replace(small, memory_bytes=plan_of(fields, topology).total_bytes - 1)
    remedy = find_remedy(fields, dataclasses.replace(topology, chip=just_short), plan_of)
    assert "would fit with     --config.mesh.data=1 --config.mesh.fsdp=4 --config.mesh.tensor=1: " in remedy
    tiny = dataclasses.replace(topology, chip=dataclasses.replace(small, memory_bytes=1))
    assert "a larger topology" in find_remedy(fields, tiny, plan_of)


def test_the_last_remedies_are_smaller_microbatches():
    fields = small_config("span_corruption", "encoder_decoder", model__remat="full", mesh__data=1, mesh__fsdp=-1)

    def plan_of(fields, topology):
        return estimate(make_experiment(fields), topology)

    topology = Topology("small:2", 2, CHIPS["h100"], ())
    small = dataclasses.replace(CHIPS["h100"], memory_bytes=plan_of(fields, topology).total_bytes - 1)
    remedy = find_remedy(fields, dataclasses.replace(topology, chip=small), plan_of)
    assert "would fit with     --config.train.grad_accum_steps=2: " in remedy


def test_a_compilers_refusal_counts_arguments_once():
    """What libtpu says, of 8 GiB of temporaries beside 10 GiB of arguments on a v5e chip; older ones say it below."""
    error = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.00G) "
    assert _bytes_needed(error + "exceeds available HBM (15.75G).") == 18 * GIB
    older = "Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    assert _bytes_needed(older) == 20.5 * GIB
    assert _bytes_needed("INTERNAL: Mosaic failed to compile") is None


def test_the_report_of_a_refusal_adds_up():
    chip = CHIPS["v5e"]
    plan = small_plan(chip)
    state = plan.parameter_bytes + plan.optimizer_bytes + plan.batch_bytes
    refused = Compiled(True, state, 18 * GIB - state, 0, 0, {}, 30.0)
    lines = list(report_lines("configs/some.py", dataclasses.replace(plan, compiled=refused)))
    assert "refused by its compiler after 30 s" in lines[0]
    assert lines[-1] == "  fits               no, 2.25 GiB too much"
    assert any("together" in line and "18.000 GiB" in line for line in lines)
    assert any("programs may use" in line and "15.750 GiB of 16" in line for line in lines)
    assert not any("collectives" in line for line in lines)


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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes.\nMore: ...", "137438953472"),
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, (18.00G) exceeds available HBM (15.75G).", "15.75G"),
    ],
)
def test_a_run_that_a_device_cannot_hold_ends_in_one_line(error, said, capsys):
    def main():
        raise jax.errors.JaxRuntimeError(error)

    with pytest.raises(SystemExit, match="1"):
        run_command(main)
    line = capsys.readouterr().err
    assert line.startswith("error: a device has too little memory: ") and line.count("\n") == 1
    assert said in line and "train.grad_accum_steps" in line and "python -m train.plan" in line


def test_other_errors_of_the_compiler_are_not_taken_for_it():
    def main():
        raise jax.errors.JaxRuntimeError("INTERNAL: Mosaic failed to compile")

    with pytest.raises(jax.errors.JaxRuntimeError, match="Mosaic"):
        run_command(main)
