"""The warning about relative biases of each row on GPUs, against the train step that is lowered for one."""

import math
import re

import jax
import pytest

from cluster.devices import CHIPS, GIB
from configs import ul2
from experiment.experiment import make_experiment
from experiment.optimizer import make_optimizer
from plan.__main__ import report_fields, report_lines
from plan.estimate import Topology, estimate
from run import sharding
from run.compiled_run import abstract_state, compiled_train_step, make_run, seed_array
from run.memory import abstract_batch, bias_warnings
from tests.table import small_config
from train.display import Display
from train.summary import print_summary

ROWS = 6
RELATIVE = {"model__positions": "relative", "precision": "bfloat16", "train__batch_size": ROWS}
MESH = {"data": 1, "fsdp": 1, "tensor": 1}


def experiment_of(name, architecture, **overrides):
    return make_experiment(small_config(name, architecture, **RELATIVE | overrides))


def bias_gradients(experiment, monkeypatch):
    """The bytes of the gradients [B, H, Q, S] that cuDNN's calls in the step return, lowered for a GPU."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr("run.compiled_run.platform_of", lambda device: "hopper")
    mesh = sharding.make_mesh(experiment.mesh, jax.devices()[:1])
    state, rows = abstract_state(experiment, mesh), sharding.batch_sharding(mesh)
    optimizer = make_optimizer(experiment.optimizer, 2, experiment.model)
    step = compiled_train_step(experiment, optimizer, jax.tree.map(lambda leaf: leaf.sharding, state), rows)
    traced = step.trace(state, abstract_batch(experiment, rows), seed_array(0))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line.rpartition("->")[2] for line in text.splitlines() if re.search(r"@__cudnn\$fmha\w*Backward", line)]
    assert calls, "the step does not use cuDNN's attention"
    shapes = [shape for call in calls for shape in re.findall(r"tensor<(\d+x\d+x\d+x\d+)xbf16>", call)]
    sizes = [[int(size) for size in shape.split("x")] for shape in shapes]
    sizes = [size for size in sizes if (size[0], size[1]) == (ROWS, 2) and size[3] != 16]  # not those of q, k, v
    return sum(2 * math.prod(size) for size in sizes) * experiment.model.num_layers  # a call is in a scan of layers


SEVERAL, OWN = "rows have several segments", "rows have masks of their own"
# The config; what the warning says, None for no warning; the pairs of query and key of its rows.
CASES = {
    "packed": (("ul2:packed", "encoder_decoder"), {}, SEVERAL, 2 * 40 * 40),
    "several": (("mlm", "encoder_only"), {"data__examples_per_row": 2}, SEVERAL, 40 * 40),
    "pieces": (("clm", "decoder_only"), {}, SEVERAL, 40 * 40),
    "prefix": (("ul2", "decoder_only"), {}, OWN, 40 * 40),
    "merged": (("span_corruption", "encoder_decoder"), {"model__merged_attention": True}, OWN, 40 * 80),
    "one segment": (("span_corruption", "encoder_decoder"), {}, None, 0),
    "one segment, causal": (("clm", "decoder_only"), {"data__documents": "join"}, None, 0),
    "rotary": (("clm", "decoder_only"), {"model__positions": "rope"}, None, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_warning_has_the_bytes_of_the_lowered_step(case, monkeypatch):
    names, overrides, said, pairs = CASES[case]
    experiment = experiment_of(*names, **overrides)
    warnings = bias_warnings(experiment, "hopper", MESH)
    expected = 2 * ROWS * 2 * pairs * 2  # layers, rows, heads, pairs, bytes of a bfloat16
    assert bias_gradients(experiment, monkeypatch) == expected
    assert len(warnings) == (said is not None)
    if said is not None:
        [warning] = warnings
        assert said in warning and ("data.examples_per_row=1" in warning) == (said == SEVERAL)
        assert "; model.positions='rope' has none" in warning and "\n" not in warning
        assert f" {expected / 2 / GIB:.3g} GiB of biases and {expected / GIB:.3g} GiB of their gradients" in warning


@pytest.mark.parametrize(
    ("platform", "overrides"),
    [
        ("cpu", {}),
        ("tpu", {}),
        ("gpu", {}),
        ("hopper", {"model__dropout_rate": 0.1}),
        ("hopper", {"precision": "float32"}),
    ],
)
def test_other_kernels_have_no_such_bias(platform, overrides):
    assert bias_warnings(experiment_of("ul2:packed", "encoder_decoder", **overrides), platform, MESH) == []


def test_devices_divide_rows_and_heads():
    """UL2 base with four examples in a row: 32 rows, 12 heads and 2 x 12 layers, in bfloat16."""
    experiment = make_experiment(ul2.get_config("base,packed"), vocab_size=32128)
    gradients = 12 * 32 * 12 * (2048**2 + 1152**2) * 2 / GIB
    [alone] = bias_warnings(experiment, "hopper", MESH)
    assert f"3.95 GiB of biases and {gradients:.3g} GiB of their gradients a step" in alone
    [split] = bias_warnings(experiment, "hopper", {"data": 2, "fsdp": 2, "tensor": 2})
    assert f"0.494 GiB of biases and {gradients / 8:.3g} GiB of" in split
    [whole_heads] = bias_warnings(experiment, "hopper", {"data": 1, "fsdp": 1, "tensor": 8})  # 8 does not divide 12
    assert "3.95 GiB of biases" in whole_heads


def test_the_layers_of_each_stack_have_gradients():
    lengths = {"data__inputs_length": 80, "data__targets_length": 40}
    experiment = experiment_of("ul2:packed", "encoder_decoder", model__num_decoder_layers=5, **lengths)
    pair = ROWS * 2 * 2 / GIB  # rows, heads, bytes of a bfloat16
    biases, gradients = pair * (80 * 80 + 40 * 40), pair * (2 * 80 * 80 + 5 * 40 * 40)
    [warning] = bias_warnings(experiment, "hopper", MESH)
    assert f" {biases:.3g} GiB of biases and {gradients:.3g} GiB of their gradients" in warning


def test_a_plan_for_gpus_has_the_warning():
    experiment = experiment_of("ul2:packed", "encoder_decoder", train__batch_size=8)
    plan = estimate(experiment, Topology("h100:4", 4, CHIPS["h100"], ()))
    lines = [line for line in report_lines("configs/some.py", plan) if "WARNING" in line]
    assert lines == [f"  WARNING            {warning}" for warning in plan.warnings] and SEVERAL in lines[-1]
    assert report_fields("configs/some.py", plan)["warnings"] == plan.warnings
    of_tpu = estimate(experiment, Topology("v5e:4", 4, CHIPS["v5e"], ()))
    assert of_tpu.warnings == [*experiment.warnings] and not any(SEVERAL in warning for warning in of_tpu.warnings)


def test_the_start_of_a_run_on_a_gpu_has_the_warning(corpus, capsys, monkeypatch, tmp_path):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    run = make_run(experiment_of("ul2:packed", "encoder_decoder", **text), show_progress=False)
    for platform, count in (("cpu", 0), ("hopper", 1)):
        monkeypatch.setattr("train.summary.platform_of", lambda device, platform=platform: platform)
        print_summary(run, Display(1, 0), str(tmp_path))
        assert capsys.readouterr().out.count("WARNING: model.positions='relative' is an array of biases") == count
