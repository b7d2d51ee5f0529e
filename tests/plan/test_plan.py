"""Estimates of a run: bytes by hand, the printed report, and changes that make a run fit."""

import dataclasses
import json
import re

import jax
import pytest

from cluster.devices import CHIPS, GIB
from command.flags import TRAINING_MEMORY, run_command
from configs import machines, ul2
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from plan import __main__ as command
from plan.__main__ import report_fields, report_lines
from plan.costs import Cost
from plan.estimate import (
    Compiled,
    Topology,
    _bytes_needed,
    _text,
    estimate,
    gather_warnings,
    parse_topology,
    pool_share,
)
from run.memory import Machine, resolve_memory
from run.sharding import mesh_shape
from tests.in_process import run_here
from tests.table import small_config


def small_plan(chip=None, devices=4, **overrides):
    experiment = make_experiment(small_config("span_corruption", "encoder_decoder", **overrides))
    return estimate(experiment, Topology("some:4", devices, chip, ()))


def test_bytes_from_shapes_are_those_of_the_shards():
    whole, split = small_plan(), small_plan(mesh__data=1, mesh__fsdp=4, optimizer__name="adamw")
    assert whole.parameter_bytes == 4 * whole.num_params
    assert whole.positions_per_step == 8 * (40 + 40)
    # Matrices are split, norms and the relative bias are not; Adam's moments are two more copies.
    assert split.parameter_bytes == pytest.approx(whole.parameter_bytes / 4, rel=0.1)
    assert split.optimizer_bytes == pytest.approx(2 * split.parameter_bytes, rel=0.01)
    assert whole.batch_bytes * 4 == 8 * 40 * 9 * 4
    assert whole.fits is None and whole.roofline_seconds is None


def test_averaged_parameters_are_one_more_copy_of_the_parameters():
    plain, averaged = small_plan(), small_plan(train__ema_decay=0.9)
    assert plain.average_bytes == 0 and averaged.average_bytes == averaged.parameter_bytes == plain.parameter_bytes
    assert averaged.total_bytes - plain.total_bytes == plain.parameter_bytes


def test_microbatches_need_the_memory_of_gradients_twice_as_the_choice_counts_them(monkeypatch):
    """Before, the second copy was in the choice alone, so a plan was "about 59.2 of 55.9 GiB" and fitted."""
    monkeypatch.setattr("run.memory.GIB", 1)
    for rows, copies in ((1, 1), (8, 2)):
        fields = small_config("clm", "decoder_only", model__remat="full", train__grad_accum_steps=0)
        fields["train"]["batch_size"] = rows
        resolved = resolve_memory(make_experiment(fields), Machine("some chip", "cpu", 1, 1000))
        plan = estimate(resolved, Topology("cpu:1", 1, None, ()))
        memory = report_fields("configs/some.py", plan)["memory"]
        assert (plan.grad_accum_steps, memory["gradients"]) == (rows, copies * plan.parameter_bytes)
        assert sum(memory.values()) == 2 * plan.total_bytes == 2 * memory["total"]
        chosen = re.search(r"chosen for some chip: about ([\d.]+) of 1000\.0 GiB", plan.chosen)
        assert float(chosen[1]) == pytest.approx(plan.total_bytes, rel=1e-4)
        assert plan.warnings == [*resolved.warnings] and "may not have the memory" in plan.warnings[-1]
        assert any("WARNING            a device may not" in line for line in report_lines("configs/some.py", plan))


def test_a_fused_kernel_keeps_its_inputs_and_its_result_and_no_scores():
    """4 rows of 512, 1 per chip; 2 layers. XLA's attention keeps each layer's probabilities, cuDNN's the mask."""
    overrides = {"data__inputs_length": 512, "model__positions": "rope", "train__batch_size": 4}

    def plan_of(chip, **more):
        fields = small_config("clm", "decoder_only", **overrides, **more) | {"precision": "bfloat16"}
        return estimate(make_experiment(fields), Topology("some:4", 4, chip, ()))

    fused, whole = plan_of(CHIPS["h100"]), plan_of(CHIPS["h100"], model__attention="xla")
    assert (fused.attention[0], whole.attention) == ("cudnn", ("xla", "model.attention='xla'"))
    layers, heads, bfloat16 = 2, 2, 2
    saved = layers * heads * 512 * 512 * bfloat16 - 512 * 512
    assert whole.activation_bytes - fused.activation_bytes == pytest.approx(saved, rel=0.05)
    assert plan_of(CHIPS["v5e"]).attention[0] == "splash"
    assert plan_of(CHIPS["t4"]).attention == ("xla", "no fused kernel for gpu")
    assert any("attention          cudnn (" in line for line in report_lines("configs/some.py", fused))
    dropped = [plan_of(CHIPS["h100"], model__dropout_rate=0.1, model__attention_dropout=x) for x in (True, False)]
    assert "with model.attention_dropout=False" in dropped[0].attention[1] and dropped[1].attention == fused.attention
    assert dropped[0].activation_bytes - dropped[1].activation_bytes == pytest.approx(saved, rel=0.05)
    with pytest.raises(ConfigError, match=r"^model.attention='cudnn' must be .*: cudnn needs an NVIDIA"):
        plan_of(CHIPS["v5e"], model__attention="cudnn")


def test_a_tpu_keeps_what_a_kernel_reads_and_writes_in_tiles_of_128_lanes():
    """2 layers of 2 heads, 4 rows of 512, 1 per chip: per layer q, k, v and the kernel's own copy of its result."""

    def activations(chip, head_dim):
        fields = small_config("clm", "decoder_only", data__inputs_length=512, model__positions="rope")
        fields["train"]["batch_size"] = 4
        fields["model"] |= {"head_dim": head_dim, "num_heads": 2, "num_kv_heads": 2}
        fields["precision"] = "bfloat16"
        return estimate(make_experiment(fields), Topology("some:4", 4, CHIPS[chip], ())).activation_bytes

    array = 2 * 2 * 512 * 2  # bytes of a head's feature in bfloat16, of both layers and heads
    for head_dim, padding in ((128, 0), (64, 3 * 64 + 64)):
        mask = activations("h100", head_dim) - activations("v5e", head_dim) + array * (head_dim + padding)
        assert abs(mask) < 2**20


def test_one_v5e_has_microbatches_of_ul2_base_that_the_compiler_fits():
    """16: with 8 the TPU compiler needs 16.5 of 15.8 GiB (libtpu 0.0.42.1, jax 0.10.2)."""
    config = ul2.get_config("base").to_dict()
    machine = Machine("TPU v5 lite", "tpu", 1, CHIPS["v5e"].usable_bytes)
    resolved = resolve_memory(make_experiment(config, vocab_size=32128), machine)
    assert (resolved.model.remat, resolved.train.grad_accum_steps) == ("none", 16)


@pytest.mark.slow
def test_remat_accumulation_and_more_devices_keep_fewer_activations():
    plain = small_plan().activation_bytes
    # The layer that the backward pass recomputes is in memory whole, so rematerialization saves little of two layers.
    full, deep = small_plan(model__remat="full", model__num_layers=8), small_plan(model__num_layers=8)
    assert full.activation_bytes < deep.activation_bytes / 2
    assert small_plan(train__grad_accum_steps=2).activation_bytes == pytest.approx(plain / 2, rel=0.1)
    assert small_plan(devices=8).activation_bytes == pytest.approx(plain / 2, rel=0.1)


STEPS = [
    ("clm", "decoder_only", "none", 0.0, {}),
    ("span_corruption", "encoder_decoder", "full", 0.1, {"model__num_layers": 1, "model__num_decoder_layers": 6}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture", "remat", "dropout_rate", "depths"), STEPS)
def test_temporaries_are_those_of_the_compiled_step(name, architecture, remat, dropout_rate, depths):
    """The backward pass of a rematerialized layer needs the scores of that layer; XLA reports them."""
    lengths = {"data__inputs_length": 256, "data__targets_length": 64}
    overrides = {"model__remat": remat, "model__dropout_rate": dropout_rate} | depths
    experiment = make_experiment(small_config(name, architecture, **lengths, **overrides))
    from_shapes = estimate(experiment, Topology("cpu:1", 1, None, ()))
    compiled = estimate(experiment, Topology("cpu:1", 1, None, tuple(jax.devices()[:1])))
    assert 0.5 < from_shapes.temporary_bytes / compiled.temporary_bytes < 1.5


def test_a_compilers_refusal_counts_arguments_once():
    """Errors of libtpu for 8 GiB of temporaries and 10 GiB of arguments on a v5e chip, and of an older version."""
    error = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.00G) "
    assert _bytes_needed(error + "exceeds available HBM (15.75G).") == 18 * GIB
    older = "Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    assert _bytes_needed(older) == 20.5 * GIB
    assert _bytes_needed("INTERNAL: Mosaic failed to compile") is None


def test_the_report_of_a_refusal_adds_up():
    chip = CHIPS["v5e"]
    plan = small_plan(chip)
    state = plan.parameter_bytes + plan.optimizer_bytes + plan.batch_bytes
    refused = Compiled(True, state, 18 * GIB - state, 30.0)
    lines = list(report_lines("configs/some.py", dataclasses.replace(plan, compiled=refused)))
    assert "rejected by the compiler after 30 s" in lines[0]
    assert lines[-2] == "  fits               no, 2.25 GiB too much" and "train.grad_accum_steps" in lines[-1]
    assert any("total" in line and "18.000 GiB" in line for line in lines)
    assert any("available to programs" in line and "15.750 GiB of 16" in line for line in lines)
    assert not any("collectives" in line for line in lines)
    named = list(report_lines("configs/some.py", dataclasses.replace(plan, compiled=refused), 4))
    assert named[-2] == "  train.grad_accum_steps=4 is the smallest that fits, by the estimate from shapes"


def test_a_float32_model_on_a_tpu_says_that_its_products_are_bfloat16():
    shown = {}
    for chip, precision in (("v5e", "float32"), ("v5e", "bfloat16"), ("h100", "float32")):
        plan = estimate(
            make_experiment(small_config("clm", "decoder_only") | {"precision": precision}),
            Topology(f"{chip}:1", 1, CHIPS[chip], ()),
        )
        shown[chip, precision] = next(line for line in report_lines("c", plan) if line.startswith("  precision"))
    assert shown["v5e", "float32"].startswith("  precision          float32, but products in bfloat16")
    assert shown["v5e", "bfloat16"].split() == ["precision", "bfloat16"]
    assert shown["h100", "float32"].split() == ["precision", "float32"]


def test_roofline_is_the_slower_of_arithmetic_and_memory():
    chip = dataclasses.replace(CHIPS["v5e"], peak_flops=1e12, memory_bandwidth=1e30)
    plan = small_plan(chip)
    assert plan.roofline_seconds == pytest.approx(plan.flops / 4 / 1e12)
    plan = small_plan(dataclasses.replace(chip, peak_flops=1e30, memory_bandwidth=1e6))
    state = 2 * (plan.parameter_bytes + plan.optimizer_bytes)
    assert plan.roofline_seconds == pytest.approx((state + plan.batch_bytes) / 1e6)


def test_a_teacher_takes_memory_and_is_read_once_a_step():
    plan = small_plan(dataclasses.replace(CHIPS["v5e"], peak_flops=1e30, memory_bandwidth=1e6))
    taught = dataclasses.replace(plan, teacher_bytes=10**6)
    assert taught.total_bytes - plan.total_bytes == 10**6
    assert taught.roofline_seconds - plan.roofline_seconds == pytest.approx(1.0)


UNKNOWN = ["v5e", "v5e:4", "v7:2x2", "v5e:4x4:0", "h100:8:2", "gpu:2x2", "h100:0"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_topologies_are_errors(name):
    with pytest.raises(ConfigError, match=f"--topology={name} is unknown: use v5e:AxB"):
        parse_topology(name)


def test_the_json_file_has_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    path = tmp_path / "plan.json"
    arguments = ("--config=configs/clm.py:base", "--topology=h100:1", "--vocab_size=50257", f"--json={path}")
    arguments += ("--config.model.remat=none", "--config.train.grad_accum_steps=1")
    status, out, _ = run_here(command.main, *arguments)
    plan = json.loads(path.read_text())
    assert (plan["remat"], plan["microbatches"], plan["chosen"]) == ("none", 1, None)
    assert "  recomputation      remat none, 1 microbatch\n" in out
    assert (status, plan["fits"], plan["devices"]) == (1, False, 1)  # 512 rows of 1,024 at once
    assert (plan["available_bytes"], plan["device_bytes"]) == (60 * 10**9, 80 * 10**9)  # JAX's pool is 75%
    assert "available to programs                55.879 GiB of 74.51: the pool of JAX" in out
    # Each printed size and count is in the file.
    for name, size in plan["memory"].items():
        assert re.search(rf"{name} +{size / GIB:z.3f} GiB", out), name
    assert f"{plan['positions_per_step']:,}" in out and f"{plan['flops_per_step']:.3e}" in out
    assert plan["attention_reason"] in out and f"{plan['roofline_seconds'] * 1e3:,.1f} ms" in out
    assert plan["collectives"] is None and plan["compiled"] is False


def test_the_json_file_has_the_collectives_of_a_compiled_step():
    plan = dataclasses.replace(small_plan(), compiled=Compiled(False, 1, 2, 6.0, 3, 4, {"all-reduce": 5}))
    fields = report_fields("configs/some.py", plan)
    assert fields["collectives"] == {"all-reduce": 5} and fields["compiled"] and fields["compile_seconds"] == 6.0
    assert fields["total_bytes"] == 10 and fields["fits"] is None and fields["available_bytes"] is None


def test_collectives_that_jaxlib_cannot_read_are_unknown():
    class Program:
        def as_text(self):
            raise jax.errors.JaxRuntimeError("INTERNAL: async-update instruction should have 1 operands but sees 3")

    assert _text(Program()) is None
    plan = dataclasses.replace(small_plan(), compiled=Compiled(False, 1, 2, 6.0, collectives=None))
    assert report_fields("configs/some.py", plan)["collectives"] is None
    assert any(line.startswith("  collectives        unknown: ") for line in report_lines("configs/some.py", plan))


def test_parameters_that_are_added_up_and_not_gathered_are_a_warning():
    """One device, no program, one that cannot be read, gathers, and gathers that are steps of a ring."""
    gb = 10**9
    for fsdp, kinds, count in (
        (64, {"all-reduce": 5 * gb}, 1),
        (1, {"all-reduce": 5 * gb}, 0),
        (64, None, 0),
        (64, {"reduce-scatter": 5 * gb}, 0),
        (64, {"all-reduce": 5 * gb, "all-gather": 2 * gb}, 0),
        (64, {"all-reduce": 5 * gb, "collective-permute": 2 * gb}, 0),
        (64, {"all-reduce": 105 * gb, "collective-permute": 4, "all-gather": 4}, 1),
        (64, {"all-reduce": 4}, 0),  # metrics alone
    ):
        compiled = Compiled(False, 1, 2, 6.0, 3, 4, kinds)
        assert len(gather_warnings({"data": 1, "fsdp": fsdp, "tensor": 1}, gb, compiled)) == count
    assert gather_warnings({"data": 1, "fsdp": 64, "tensor": 1}, gb, None) == []


@pytest.mark.parametrize(
    ("data", "fsdp", "remedy"),
    [
        (1, 64, ": try mesh.data=2 and mesh.fsdp=32"),
        (2, 64, ": try mesh.data=4 and mesh.fsdp=32"),
        (4, 32, ": try mesh.data=8 and mesh.fsdp=16"),
        (1, 3, ""),
        (1, 2, ""),
    ],
)
def test_the_warning_names_a_mesh_of_the_same_devices(data, fsdp, remedy):
    compiled = Compiled(False, 1, 2, 6.0, collectives={"all-reduce": 5})
    [warning] = gather_warnings({"data": data, "fsdp": fsdp, "tensor": 1}, 5, compiled)
    assert warning == f"parameters are added up whole over mesh.fsdp, not gathered{remedy}"


def test_the_preset_for_that_slice_has_half_of_its_devices_in_the_axis():
    assert machines.topology_of("20b") == "v5p:4x4x4"
    assert mesh_shape(make_experiment(ul2.get_config("20b"), vocab_size=384).mesh, 64) == (2, 32, 1)


def test_costs_are_printed_and_in_the_json_file():
    found = {"matrix products": Cost(300, 3 * GIB, GIB), "kernels": Cost(0, GIB, 0), "copies": Cost(100, 0, 0)}
    plan = dataclasses.replace(small_plan(), compiled=Compiled(False, 1, 2, 6.0, costs=found))
    lines = [" ".join(line.split()) for line in report_lines("configs/some.py", plan)]
    assert "costs 400 cycles a step, as the compiler estimates" in lines
    assert "matrix products 75.0% of cycles, 3.000 GiB read and written (1.000 of it padding of tiles)" in lines
    assert (
        "kernels of cycles, 1.000 GiB read and written" not in lines and "kernels 1.000 GiB read and written" in lines
    )
    assert report_fields("configs/some.py", plan)["costs"]["copies"] == {"cycles": 100, "bytes": 0, "padding_bytes": 0}
    assert report_fields("configs/some.py", small_plan())["costs"] is None


def test_costs_need_a_tpu():
    status, _, err = run_here(command.main, "--config=configs/ul2.py", "--topology=h100:1", "--costs")
    assert (
        status == 1
        and err.strip() == "error: --costs needs a TPU topology, such as v5e:4x4: h100:1 has no compiler here"
    )


def test_a_file_that_cannot_be_written_is_an_error_before_the_plan(tmp_path):
    arguments = ("--config=configs/ul2.py", "--topology=cpu:1", f"--json={tmp_path}/none/plan.json")
    status, out, err = run_here(command.main, *arguments)
    assert (status, out) == (1, "") and "--json=" in err and len(err.splitlines()) == 1


def test_the_pool_of_a_gpu_is_that_of_the_environment(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert pool_share() == 0.75
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    assert pool_share() == 0.9


@pytest.mark.parametrize("arguments", [["--topology=cpu:3"], []])
def test_the_commands_errors_are_one_line(arguments):
    status, out, err = run_here(command.main, "--config=configs/ul2.py", *arguments)
    assert status == 1 and err.startswith("error: ") and len(err.splitlines()) == 1 and not out


@pytest.mark.parametrize("name", ["electra", "sft"])
def test_objectives_with_other_learners_or_extra_columns_are_planned(name):
    fields = small_config(name, "decoder_only" if name == "sft" else "encoder_only")
    plan = estimate(make_experiment(fields), Topology("cpu:1", 1, None, ()))
    assert plan.activation_bytes > 0 and plan.parameter_bytes == 4 * plan.num_params


def test_out_of_memory_is_reported_in_one_line(capsys):
    def main():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while allocating 1374 bytes.\nMore: ...")

    with pytest.raises(SystemExit, match="1"):
        run_command(main, memory_remedy=TRAINING_MEMORY)
    line = capsys.readouterr().err
    assert line.startswith("error: a device has too little memory: ") and line.count("\n") == 1
    assert "1374" in line and "train.grad_accum_steps" in line and "python -m train.plan" in line


def test_other_compiler_errors_are_not_reported_as_out_of_memory():
    def main():
        raise jax.errors.JaxRuntimeError("INTERNAL: Mosaic failed to compile")

    with pytest.raises(jax.errors.JaxRuntimeError, match="Mosaic"):
        run_command(main)
