"""Gradients are added over the axes "data" and "context" once per step, in float32, and are those of one device."""

import pytest

from tests.train.subprocesses import run

PRELUDE = """
import functools, json, os
import jax, numpy as np, optax
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"  # read when the devices are first used
from tests.table import small_config
from tests.train.learners.row_learners import batch_of
from train import sharding
from train.experiment import make_experiment
from train.plan.hlo import collective_bytes
from train.run import abstract_state, compiled_train_step, on_mesh, seed_array
from train.per_part import per_part_of_positions
from train.step import init_state, make_eval_step

def experiment_of(name, architecture, **fields):
    precision = fields.pop("precision", "float32")
    fields = {"train__batch_size": 32, "model__num_layers": 1} | fields
    return make_experiment(small_config(name, architecture, **fields) | {"precision": precision})

def step_of(experiment, devices):
    "the step, its state and batch on a mesh of the devices"
    mesh, optimizer = sharding.make_mesh(experiment.mesh, devices), optax.sgd(1.0)
    rows = sharding.batch_sharding(mesh)
    state = init_state(experiment.learner, optimizer, 0)
    shardings = sharding.shardings(mesh, state)
    batch = jax.device_put(batch_of(experiment, experiment.train.batch_size), rows)
    return compiled_train_step(experiment, optimizer, shardings, rows), jax.device_put(state, shardings), batch
"""

BYTES = """
def collectives(**fields):
    experiment = experiment_of("span_corruption", "decoder_only", precision="bfloat16", **fields)
    step, state, batch = step_of(experiment, jax.devices())
    text = step.lower(state, batch, seed_array(0)).compile().as_text()
    return {"all": collective_bytes(text), "parameters": 4 * sum(x.size for x in jax.tree.leaves(state.params))}

print(json.dumps({
    "1 microbatch": collectives(),
    "4 microbatches": collectives(train__grad_accum_steps=4),
    "fsdp": collectives(mesh__data=1, mesh__fsdp=8),
    "fsdp, 8 chunks": collectives(mesh__data=1, mesh__fsdp=8, loss__chunk_size=5),
    "fsdp, 2 chunks": collectives(mesh__data=1, mesh__fsdp=8, loss__chunk_size=20),
    "8 chunks": collectives(loss__chunk_size=5),
    "4 microbatches, context": collectives(mesh__context=2, train__grad_accum_steps=4),
}))
"""

EQUAL = """
CASES = {  # learner -> config, architecture, fields, fields of the run on several devices
    "token_prediction": ("span_corruption", "decoder_only", {}, {"loss__chunk_size": 5}),
    "fsdp": ("span_corruption", "decoder_only", {}, {"loss__chunk_size": 5, "mesh__fsdp": 2}),
    "data, fsdp, tensor": (
        "span_corruption", "decoder_only", {}, {"loss__chunk_size": 5, "mesh__fsdp": 2, "mesh__tensor": 2}
    ),
    "data, context": ("span_corruption", "decoder_only", {}, {"loss__chunk_size": 5, "mesh__context": 4}),
    "context, tensor; packed rows": ("clm", "decoder_only", {}, {"mesh__context": 4, "mesh__tensor": 2}),
    "context, fsdp; cross-attention, relative bias": (
        "span_corruption", "encoder_decoder", {}, {"mesh__context": 2, "mesh__fsdp": 2}
    ),
    "context; attention order": ("unilm", "encoder_only", {}, {"mesh__context": 8}),
    "multi_token_prediction": (
        "multi_token_prediction", "decoder_only",
        {"model__dropout_rate": 0.1}, {"train__grad_accum_steps": 1, "mesh__context": 2},
    ),
    "electra": (
        "electra", "encoder_only", {"model__dropout_rate": 0.1}, {"train__grad_accum_steps": 1, "mesh__context": 2}
    ),
    "sentence_pairs": ("nsp", "encoder_only", {}, {"mesh__context": 2}),
    "classification": ("classification", "encoder_only", {}, {"mesh__context": 4}),
    "contrastive": ("simcse", "encoder_only", {}, {"train__grad_accum_steps": 1}),
}

@functools.cache
def on_one_device(name, architecture, fields):
    return updated(experiment_of(name, architecture, **dict(fields)), jax.devices()[:1])

def updated(experiment, devices):
    step, state, batch = step_of(experiment, devices)
    state, metrics = step(state, batch, seed_array(0))
    return jax.device_get((state.params, metrics))

def difference(name, architecture, fields, split):
    "of the updated parameters and of the metrics to those of one device and one microbatch, relative to the largest"
    experiment = experiment_of(name, architecture, **fields | {"train__grad_accum_steps": 2} | split)
    expected = on_one_device(name, architecture, tuple(fields.items()))
    return of_trees(updated(experiment, jax.devices()), expected)

def of_trees(found, expected):
    pairs = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-3)) for a, b in pairs)

def evaluated(name, architecture, devices, **fields):
    experiment = experiment_of(name, architecture, **fields)
    mesh = sharding.make_mesh(experiment.mesh, devices)
    rows, params = sharding.batch_sharding(mesh), experiment.learner.init_params(jax.random.key(0))
    step = per_part_of_positions(make_eval_step(experiment.learner, bytes_of_token=None, unk=3), mesh=mesh)
    batch = jax.device_put(batch_of(experiment, experiment.train.batch_size), rows)
    return jax.device_get(jax.jit(on_mesh(step, rows))(params, batch))

differences = {name: difference(*case) for name, case in CASES.items()}
for name in ("span_corruption", "classification"):
    parts = evaluated(name, "decoder_only", jax.devices(), mesh__context=4)
    differences[f"evaluation of {name}"] = of_trees(parts, evaluated(name, "decoder_only", jax.devices()[:1]))
print(json.dumps(differences))
"""


@pytest.fixture(scope="module")
def reduced():
    return run(PRELUDE + BYTES, devices=8, timeout=300)[0]


@pytest.mark.parametrize("case", ["1 microbatch", "4 microbatches", "8 chunks"])
def test_each_gradient_is_added_over_the_devices_once_whatever_the_number_of_parts(reduced, case):
    collectives, parameters = reduced[case]["all"], reduced[case]["parameters"]
    assert set(collectives) == {"all-reduce"}
    # The gradients in float32, and a few scalars of the loss.
    assert parameters <= collectives["all-reduce"] < 1.01 * parameters + 4096


def test_gradients_are_added_once_over_the_parts_of_rows_too(reduced):
    """Every microbatch gathers keys and values alone, and scatters the gradients of these."""
    collectives, parameters = reduced["4 microbatches, context"]["all"], reduced["4 microbatches"]["parameters"]
    assert set(collectives) == {"all-reduce", "all-gather", "reduce-scatter"}
    assert parameters <= collectives["all-reduce"] < 1.01 * parameters + 4096


def test_the_output_table_is_gathered_and_its_gradient_added_once_whatever_the_number_of_chunks(reduced):
    few, many = reduced["fsdp, 2 chunks"]["all"], reduced["fsdp, 8 chunks"]["all"]
    assert few.keys() == many.keys()
    for kind, size in few.items():
        assert many[kind] == pytest.approx(size, rel=0.02), kind
    assert sum(many.values()) < 1.5 * sum(reduced["fsdp"]["all"].values())


def test_every_learners_update_is_that_of_one_device_and_one_microbatch():
    differences = run(PRELUDE + EQUAL, devices=8, timeout=300)[0]
    assert {name: value for name, value in differences.items() if not value < 2e-4} == {}
