"""One device, meshes of eight and jax.pmap train the same, and continue each other's checkpoints."""

import math

import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from tests.small_fields import small_config
from tests.train.subprocesses import run

MESHES = {
    "data": {"data": 8},
    "fsdp": {"data": 1, "fsdp": 8},
    "all three": {"data": 2, "fsdp": 2, "tensor": 2},
    "context": {"data": 2, "context": 4},
    "two slices": {"data": 4, "fsdp": 2},
    "pmap": {"backend": "pmap"},
}

PROGRAM = """
import json, os, sys
import jax
import numpy as np
from tests.small_fields import small_config
from tests.train.test_sharding import tpus
from train import sharding
from train.checkpoint import Checkpoints
from train.experiment import make_experiment
from train.run import make_run

corpus, workdir, meshes = {corpus!r}, {workdir!r}, {meshes!r}

order_devices = sharding.order_devices

def order_slices(shape, devices):
    "this machine's devices as if every second one were of another slice of a TPU"
    chips = tpus(2, 2, 1, slices=2)
    order = np.vectorize(lambda chip: chips.index(chip))(order_devices(shape, chips))
    return np.array([*devices[::2], *devices[1::2]])[order]

def run_on(mesh):
    fields = {{f"mesh__{{name}}": value for name, value in mesh.items()}}
    return make_run(make_experiment(small_config(
        "span_corruption", "decoder_only", data__source="text", data__path=corpus + "/text",
        data__cache_dir=corpus + "/cache", optimizer__warmup_steps=0, optimizer__learning_rate=1e-2,
        train__steps=4, train__ema_decay=0.4, **fields)), show_progress=False)

def train(run, state, start, steps):
    losses, batches = [], run.train_batches(start)
    for _ in range(steps):
        state, metrics = run.train_step(state, run.to_devices(next(batches)))
        losses.append(float(metrics["loss_sum"] / metrics["weight_sum"]))
    return state, losses

results = {{}}
for name, mesh in meshes.items():
    sharding.order_devices = order_slices if name == "two slices" else order_devices
    run = run_on(mesh)
    state, losses = train(run, run.init_state(), 0, 3)
    size = sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.ema_params))
    results[name] = [*losses, size]
    if name != list(meshes)[0]:  # continue the checkpoint of the previous mesh
        checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=None)
        _, [loss] = train(run, checkpoints.restore(run.state_shapes), 2, 1)
        results[name + " continued"] = loss
        checkpoints.close()
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), keep=9)
    state, _ = train(run, run.init_state(), 0, 2)
    checkpoints.save(len(results), state)
    checkpoints.close()
print(json.dumps(results))
"""


def losses(corpus, tmp_path, meshes, devices):
    program = PROGRAM.format(corpus=str(corpus), workdir=str(tmp_path), meshes=meshes)
    return run(program, devices=devices, timeout=600)[0]


def test_every_mesh_trains_the_same_and_continues_the_checkpoint_of_another(corpus, tmp_path):
    expected = losses(corpus, tmp_path / "one", {"one": {}}, devices=1)["one"]
    assert expected[2] < expected[0]  # the model learns, so equal losses mean equal updates
    results = losses(corpus, tmp_path / "eight", MESHES, devices=8)
    for name, found in results.items():
        expected_losses = expected if isinstance(found, list) else expected[2]
        assert found == pytest.approx(expected_losses, rel=1e-4), name
    assert sum(name.endswith("continued") for name in results) == len(MESHES) - 1


@pytest.mark.parametrize("axis", ["fsdp", "context", "tensor"])
def test_pmap_has_no_other_axes_than_data(axis):
    with pytest.raises(ConfigError, match=r"mesh.backend='pmap' copies the state to every device: set .* to 1"):
        make_experiment(small_config("clm", "decoder_only", mesh__backend="pmap", **{f"mesh__{axis}": 2}))


def test_the_batch_divides_by_the_devices_of_every_mesh():
    assert all(8 % math.prod(size for size in mesh.values() if isinstance(size, int)) == 0 for mesh in MESHES.values())
