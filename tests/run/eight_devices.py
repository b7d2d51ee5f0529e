"""Eight devices in one process: the same updates, evaluations and runs as one device.

Collected by tests/run/test_devices.py alone, in a process of its own.
"""

import dataclasses
import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contract.errors import ConfigError
from evaluation.__main__ import main as evaluate
from experiment.config import MeshConfig
from experiment.experiment import make_experiment
from generate.__main__ import main as generate
from plan.hlo import collective_bytes
from run import sharding
from run.compiled_run import compiled_train_step, make_run, seed_array
from run.restore import load_experiment, load_params
from run.sharding import batch_sharding, local_rows, make_mesh, over_devices, shardings, to_global
from run.step import init_state
from tests.in_process import run_here
from tests.learners.row_learners import batch_of, params_of
from tests.learners.test_distillation import with_teacher
from tests.run.test_devices import READ
from tests.run.test_sharding import SHAPES, D, F, N, tpus
from tests.table import small_config
from train.init_from import start_from
from train.loop import train_and_evaluate
from workdir.checkpoint import Checkpoints

FOLDER = pathlib.Path(os.environ.get("RUNS", ""))  # the test that runs this file reads the runs in it, on one device
TEXT = {"data__source": "text", "data__path": os.environ.get("TEXT", ""), "data__cache_dir": str(FOLDER / "cache")}


# Updates and evaluations of a batch.


def experiment_of(name, architecture, **fields):
    fields = {"train__batch_size": 32, "model__num_layers": 1} | fields
    precision = fields.pop("precision", "float32")
    return make_experiment(small_config(name, architecture, **fields) | {"precision": precision})


def step_of(experiment, devices):
    """The step, its state and its batch on a mesh of the devices."""
    mesh, optimizer = make_mesh(experiment.mesh, devices), optax.sgd(1.0)
    rows = batch_sharding(mesh)
    state = init_state(experiment.learner, optimizer, 0, params=params_of(experiment.learner))
    placed = shardings(mesh, state)
    batch = jax.device_put(batch_of(experiment, experiment.train.batch_size), rows)
    return compiled_train_step(experiment, optimizer, placed, rows), jax.device_put(state, placed), batch


def updated(experiment, devices, *frozen):
    step, state, batch = step_of(experiment, devices)
    state, metrics = step(state, batch, seed_array(0), *frozen)
    return jax.device_get((state.params, metrics))


@functools.cache
def on_one_device(name, architecture, fields):
    return updated(experiment_of(name, architecture, **dict(fields)), jax.devices()[:1])


def difference(found, expected):
    """The largest difference in two trees, relative to the largest entry of each array."""
    pairs = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-3)) for a, b in pairs)


SPANS, DROPOUT, WHOLE_BATCH = "span_corruption", {"model__dropout_rate": 0.1}, {"train__grad_accum_steps": 1}
ANNEALED = {"data__attention_annealing_steps": 5}
# Learner -> config, architecture, fields, fields of the step on several devices.
CASES = {
    "fsdp": (SPANS, "decoder_only", {}, {"loss__chunk_size": 5, "mesh__fsdp": 2}),
    "fsdp, tensor": (SPANS, "decoder_only", {}, {"loss__chunk_size": 5, "mesh__fsdp": 2, "mesh__tensor": 2}),
    "tensor; packed rows": ("clm", "decoder_only", {}, {"mesh__tensor": 2}),
    "fsdp, tensor; stacks of different depths": (
        SPANS, "encoder_decoder", {"model__num_decoder_layers": 3},
        {"mesh__fsdp": 2, "mesh__tensor": 2, "model__remat": "full", "model__scan_unroll": 2},
    ),
    "dropout; fsdp, tensor": (SPANS, "decoder_only", DROPOUT, WHOLE_BATCH | {"mesh__fsdp": 2, "mesh__tensor": 2}),
    "attention order": ("unilm", "encoder_only", {}, {}),
    "blocks": ("block_diffusion", "decoder_only", {}, {"mesh__fsdp": 2}),
    "denominators": ("masked_diffusion:bernoulli", "encoder_only", {}, {"mesh__fsdp": 2}),
    "annealed attention": ("hybrid", "decoder_only", ANNEALED, {"mesh__fsdp": 2}),
    "multi_token_prediction": ("multi_token_prediction", "decoder_only", DROPOUT, WHOLE_BATCH),
    "next_latent": ("next_latent", "decoder_only", {}, {"loss__chunk_size": 5, "mesh__fsdp": 2, "mesh__tensor": 2}),
    "electra": ("electra", "encoder_only", DROPOUT, WHOLE_BATCH),
    "classification": ("classification", "encoder_only", {}, {}),
    "contrastive": ("simcse", "encoder_only", {}, WHOLE_BATCH),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_one_device_and_one_microbatch(case):
    name, architecture, fields, split = CASES[case]
    experiment = experiment_of(name, architecture, **fields | {"train__grad_accum_steps": 2} | split)
    expected = on_one_device(name, architecture, tuple(fields.items()))
    assert difference(updated(experiment, jax.devices()), expected) < 2e-4


@pytest.mark.parametrize("case", ["dropout; fsdp, tensor", "electra"])
def test_an_update_under_pmap_has_the_draws_of_one_device(case):
    name, architecture, fields, _ = CASES[case]
    experiment = experiment_of(name, architecture, **fields | {"mesh__backend": "pmap"})
    step, state, batch = step_of(experiment, jax.devices())
    parts = {field: np.asarray(array).reshape(8, -1, *array.shape[1:]) for field, array in batch.items()}
    state, metrics = step(jax.device_get(state), parts, seed_array(0))
    expected = on_one_device(name, architecture, tuple(fields.items()))
    assert difference(jax.device_get((state.params, metrics)), expected) < 2e-4


def test_an_update_with_a_teacher_is_that_of_one_device_and_one_microbatch():
    """The top-k, chunks, and a teacher that is sharded as the model is."""

    def update(devices, **split):
        fields = {"distillation__teacher": "a", "distillation__top_k": 4}
        experiment = experiment_of(SPANS, "decoder_only", **fields | split)
        learner, teacher = with_teacher(experiment)
        return updated(dataclasses.replace(experiment, learner=learner), devices, {"teacher": teacher})

    parts = {"train__grad_accum_steps": 2, "loss__chunk_size": 5, "mesh__fsdp": 2, "mesh__tensor": 2}
    assert difference(update(jax.devices(), **parts), update(jax.devices()[:1])) < 2e-4


@functools.cache
def collectives(**fields):
    """The bytes of each kind of collective in a compiled step, and the bytes of the parameters."""
    experiment = experiment_of(SPANS, "decoder_only", precision="bfloat16", **fields)
    step, state, batch = step_of(experiment, jax.devices())
    text = step.lower(state, batch, seed_array(0)).compile().as_text()
    return collective_bytes(text), 4 * sum(x.size for x in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"loss__chunk_size": 5}, {"all-reduce"}),
        ({"train__grad_accum_steps": 4}, {"all-reduce"}),
    ],
)
def test_each_gradient_is_added_over_the_devices_once_whatever_the_number_of_parts(fields, kinds):
    found, parameters = collectives(**fields)
    assert set(found) == kinds
    assert parameters <= found["all-reduce"] < 1.01 * parameters + 4096, "in float32, and a few scalars of the loss"


def test_the_output_table_is_gathered_and_its_gradient_added_once_whatever_the_number_of_chunks():
    few, many = (collectives(mesh__data=1, mesh__fsdp=8, loss__chunk_size=size)[0] for size in (20, 5))
    assert few.keys() == many.keys()
    for kind, size in few.items():
        assert many[kind] == pytest.approx(size, rel=0.02), kind


# Meshes and shardings.


def mesh_of(data, fsdp, tensor):
    return make_mesh(MeshConfig(backend="jit", data=data, fsdp=fsdp, tensor=tensor))


def test_data_takes_the_remaining_devices():
    mesh = mesh_of(-1, 2, 2)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert [str(kind) for kind in mesh.axis_types] == ["AxisType.Auto"] * 3
    for sizes in ((2, 1, 2), (-1, 3, 1)):
        with pytest.raises(ConfigError, match=r"the product must be the number of devices, 8$"):
            mesh_of(*sizes)


def test_rows_are_split_over_data_and_fsdp_and_parameters_over_fsdp_and_tensor():
    mesh = mesh_of(-1, 2, 2)
    rows = batch_sharding(mesh)
    batch = to_global({"tokens": np.arange(24).reshape(8, 3)}, rows)["tokens"]
    # The first column of rows 0..7 is 0, 3, 6, ..., 21; 2 * 2 parts of 2 rows, each on the 2 devices of "tensor".
    held = sorted(shard.data[:, 0].tolist() for shard in batch.addressable_shards)
    assert held == [[0, 3], [0, 3], [6, 9], [6, 9], [12, 15], [12, 15], [18, 21], [18, 21]]
    assert np.asarray(batch).tolist() == np.arange(24).reshape(8, 3).tolist()
    assert local_rows(rows, 8).tolist() == list(range(8))
    with pytest.raises(ConfigError, match="batch_size=6 must be a multiple of"):
        local_rows(rows, 6)
    zeros = jax.jit(
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), SHAPES), out_shardings=shardings(mesh, SHAPES)
    )()
    assert zeros["decoder"]["layers"]["mlp"]["wo"]["kernel"].addressable_shards[0].data.shape == (N, F // 2, D // 2)
    with pytest.raises(ConfigError, match=r"^mesh.tensor=8 does not divide dimension 1 of logits_dense/kernel, shape "
                       r"\[8, 20\]: 20 must be a multiple of 8$"):  # fmt: skip
        shardings(mesh_of(1, 1, 8), {"logits_dense": {"kernel": np.zeros((8, 20))}})


def test_heads_that_do_not_divide_are_replicated():
    """Rows are split over data 2 x fsdp 2; heads over tensor 2 if those of queries and of keys divide."""
    mesh, shapes = mesh_of(2, 2, 2), []

    def kernel(query, keys):
        shapes.append((query.shape, keys.shape))
        return query

    for heads, key_heads in ((4, 2), (4, 1), (3, 3)):
        function = over_devices(kernel, ("BHQK", "BGSK"), "BHQK", mesh=mesh)
        jax.eval_shape(function, jnp.ones((8, heads, 5, 6)), jnp.ones((8, key_heads, 7, 6)))
    assert shapes == [((2, 2, 5, 6), (2, 1, 7, 6)), ((2, 4, 5, 6), (2, 1, 7, 6)), ((2, 3, 5, 6), (2, 3, 7, 6))]


# Runs.

MESHES = {
    "all three": {"data": 2, "fsdp": 2, "tensor": 2},
    "two slices": {"data": 4, "fsdp": 2},
    "pmap": {"backend": "pmap"},
}


def run_on(mesh, devices=None):
    fields = {"optimizer__warmup_steps": 0, "optimizer__learning_rate": 1e-2, "train__steps": 4, **TEXT}
    fields |= {"train__ema_decay": 0.4} | {f"mesh__{name}": value for name, value in mesh.items()}
    experiment = make_experiment(small_config(SPANS, "decoder_only", **fields))
    mesh = make_mesh(experiment.mesh, devices)
    return make_run(experiment, mesh=mesh, show_progress=False)


def trained(run, state, start, steps):
    """The state after so many steps, and their losses."""
    losses, batches = [], run.train_batches(start)
    for _ in range(steps):
        state, metrics = run.train_step(state, run.to_devices(next(batches)))
        losses.append(float(metrics["loss_sum"] / metrics["weight_sum"]))
    return state, losses


def average_size(state):
    return sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.ema_params))


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """The run of one device, its losses and the size of its average after 3 steps, and its checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("one")
    run = run_on({}, jax.devices()[:1])
    state, losses = trained(run, run.init_state(), 0, 2)
    checkpoints = Checkpoints(folder, keep=9)
    checkpoints.save(2, state)
    checkpoints.wait()
    state, [last] = trained(run, state, 2, 1)
    assert last < losses[0], "the model learns, so equal losses mean equal updates"
    yield run, [*losses, last], average_size(state), checkpoints
    checkpoints.close()


@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_trains_the_same_and_continues_the_checkpoint_of_another(name, one_device, tmp_path, monkeypatch):
    alone, losses, size, checkpoints = one_device
    if name == "two slices":
        order = sharding.order_devices

        def order_slices(shape, devices):  # as if every second device were of another slice of a TPU
            chips = tpus(2, 2, 1, slices=2)
            places = np.vectorize(lambda chip: chips.index(chip))(order(shape, chips))
            return np.array([*devices[::2], *devices[1::2]])[places]

        monkeypatch.setattr(sharding, "order_devices", order_slices)
    run = run_on(MESHES[name])
    state, found = trained(run, run.init_state(), 0, 3)
    assert found == pytest.approx(losses, rel=1e-4) and average_size(state) == pytest.approx(size, rel=1e-4)
    _, [continued] = trained(run, checkpoints.restore(run.state_shapes, 2), 2, 1)
    assert continued == pytest.approx(losses[2], rel=1e-4)
    own = Checkpoints(tmp_path, keep=1)
    own.save(3, state)
    own.wait()
    jax.tree.map(np.testing.assert_array_equal, own.restore(alone.state_shapes, 3), state)
    own.close()


@pytest.mark.parametrize("mesh", READ)
def test_a_run_is_read_on_eight_devices(mesh):
    """What it prints is compared with one device by tests/run/test_devices.py."""
    workdir = str(FOLDER / mesh)
    train_and_evaluate(make_experiment(small_config("clm", "decoder_only", **TEXT, **READ[mesh])), workdir)
    experiment = load_experiment(workdir)
    params, _ = load_params(experiment, workdir)
    sizes = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params)]
    assert sum(sizes) < sum(leaf.size for leaf in jax.tree.leaves(experiment.params_shapes)), "a quarter of 4 bytes"
    other = make_run(make_experiment(small_config("fim", "decoder_only", **TEXT)), show_progress=False)
    started, _ = start_from(other, other.init_state().params, workdir)
    jax.tree.map(np.testing.assert_array_equal, started, params)
    _, answer, _ = run_here(generate, f"--workdir={workdir}", "--prompt=import ", "--temperature=0", "--max_tokens=8")
    total = float(sum(abs(np.asarray(leaf)).astype(float).sum() for leaf in jax.tree.leaves(params)))
    found = {"evaluate": json.loads(run_here(evaluate, f"--workdir={workdir}")[1]), "generate": answer, "sum": total}
    (FOLDER / f"{mesh}.json").write_text(json.dumps(found))
