import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contract.errors import ConfigError
from tests.train.subprocesses import run
from workdir.checkpoint import Checkpoints, abstract


def state_of(seed):
    """A state with parameters (one is a negative zero), an optimizer's named tuples and a counter."""
    rng = np.random.default_rng(seed)
    params = {"dense": {"kernel": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), "bias": jnp.float32([0.0, -0.0])}}
    return {"params": params, "opt_state": optax.adamw(0.1).init(params), "step": jnp.int32(seed)}


def abstract_of(state):
    return abstract(state, jax.tree.map(lambda leaf: leaf.sharding, state))


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 1..6 with keep=2: (directory, latest and best step before the saves, and after them)."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    losses = {1: 3.0, 2: None, 3: 1.0, 4: float("nan"), 5: 2.0, 6: None}
    checkpoints = Checkpoints(directory, keep=2)
    before = (checkpoints.latest_step(), checkpoints.best_step())
    for step, loss in losses.items():
        checkpoints.save(step, state_of(step), eval_loss=loss)
    checkpoints.wait()
    after = (checkpoints.latest_step(), checkpoints.best_step())
    checkpoints.close()
    return directory, before, after


def test_keeps_the_newest_and_the_best(saved):
    directory, before, after = saved
    assert before == (None, None)
    assert after == (6, 3)
    assert sorted(os.listdir(directory)) == ["3", "5", "6"]


def test_counters_are_kept_with_the_state_exactly(tmp_path):
    counters = {"step": 1, "examples": [2**70, 3], "seconds": 0.1 + 0.2, "loss": float("inf")}
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, state_of(1), eval_loss=2.0, counters=counters)
    checkpoints.close()
    reader = Checkpoints(tmp_path / "checkpoints", keep=None)
    assert reader.counters(1) == counters and reader.best_step() == 1


def test_a_checkpoint_without_counters_is_refused(saved):
    with pytest.raises(ConfigError, match=r"checkpoint .*/6 has no counters .*: choose another --workdir"):
        Checkpoints(saved[0], keep=None).counters(6)


def test_a_reader_finds_the_same_steps(saved):
    reader = Checkpoints(saved[0], keep=None)
    assert (reader.latest_step(), reader.best_step()) == (6, 3)


@pytest.mark.parametrize("step", [None, 3])
def test_restores_every_bit(saved, step):
    restored = Checkpoints(saved[0], keep=None).restore(abstract_of(state_of(0)), step)
    assert_same_bits(restored, state_of(step or 6))


@pytest.mark.parametrize(
    ("name", "leaf", "named"),
    [
        (
            "kernel",
            jnp.zeros((4, 7)),
            r"params/dense/kernel is float32\[4, 6\] in it and float32\[4, 7\] now, and 0 more",
        ),
        ("kernel", jnp.zeros((4, 6), jnp.bfloat16), r"is float32\[4, 6\] in it and bfloat16\[4, 6\] now"),
        ("scale", jnp.zeros(2), r"params/dense/scale is missing in it and float32\[2\] now"),
    ],
)
def test_a_state_of_other_arrays_is_an_error(saved, name, leaf, named):
    other = state_of(0)
    other["params"]["dense"][name] = leaf
    with pytest.raises(ConfigError, match=named) as error:
        Checkpoints(saved[0], keep=None).restore(abstract_of(other))
    assert "\n" not in str(error.value)


def test_a_damaged_checkpoint_is_named(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "copy")
    (tmp_path / "copy" / "6" / "state" / "manifest.ocdbt").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"copy/6 is damaged .*--step=5$") as error:
        Checkpoints(tmp_path / "copy", keep=None).restore(abstract_of(state_of(0)))
    assert "\n" not in str(error.value)


def test_a_missing_step_is_named(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoint of step 4 .* \[3, 5, 6\]"):
        Checkpoints(saved[0], keep=None).restore(abstract_of(state_of(0)), 4)
    with pytest.raises(ConfigError, match="no checkpoint in"):
        Checkpoints(tmp_path / "nothing", keep=None).restore(abstract_of(state_of(0)))
    assert not (tmp_path / "nothing").exists()


def test_a_half_written_checkpoint_is_ignored_and_deleted_when_the_run_continues(tmp_path):
    first = Checkpoints(tmp_path, keep=3)
    first.save(1, state_of(1))
    first.close()
    (tmp_path / "2.orbax-checkpoint-tmp" / "default").mkdir(parents=True)
    (tmp_path / "2.orbax-checkpoint-tmp" / "default" / "manifest.ocdbt").write_bytes(b"half")

    reader = Checkpoints(tmp_path, keep=None)
    assert reader.latest_step() == 1
    assert (tmp_path / "2.orbax-checkpoint-tmp").exists()  # a reader may run during a save

    second = Checkpoints(tmp_path, keep=3)
    assert second.latest_step() == 1
    second.save(2, state_of(2))
    second.close()
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert_same_bits(Checkpoints(tmp_path, keep=None).restore(abstract_of(state_of(0))), state_of(2))


def test_the_remains_of_an_interrupted_deletion_are_deleted(tmp_path):
    first = Checkpoints(tmp_path, keep=1)
    first.save(2, state_of(2), eval_loss=3.0)
    first.close()
    (tmp_path / "1" / "state").mkdir(parents=True)
    second = Checkpoints(tmp_path, keep=1)
    assert (second.latest_step(), second.best_step()) == (2, 2)
    second.save(3, state_of(3), eval_loss=2.0)
    second.close()
    assert os.listdir(tmp_path) == ["3"]


def test_without_an_eval_loss_there_is_no_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        checkpoints.save(step, state_of(step), eval_loss=float("inf"))
    checkpoints.wait()
    assert checkpoints.best_step() is None
    assert os.listdir(tmp_path) == ["2"]
    checkpoints.close()


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = {"x": jnp.arange(100_000.0)}
    checkpoints.save(1, state)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    overwrite(state)
    checkpoints.close()
    restored = Checkpoints(tmp_path, keep=None).restore(abstract_of({"x": jnp.zeros(100_000)}))
    np.testing.assert_array_equal(restored["x"], np.arange(100_000.0))


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"checkpoints cannot be written to .*file"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(ConfigError, match="keep_checkpoints=0"):
        Checkpoints(tmp_path, keep=0)


SAVE_IN_TWO_PROCESSES = """
distributed()
import jax.numpy as jnp, numpy as np, json
from train.checkpoint import *
from train.config import MeshConfig
from train.sharding import *

mesh = make_mesh(MeshConfig(backend="jit", data=2, fsdp=2, context=1, tensor=1))
rows = local_rows(batch_sharding(mesh), 8)
batch = to_global({"x": np.stack([rows, 10 * np.array(rows)], axis=1)}, batch_sharding(mesh))
total = jax.jit(lambda x: x.sum(axis=0))(batch["x"])

shapes = {"logits_dense": {"kernel": jax.ShapeDtypeStruct((4, 6), jnp.float32)}}
placed = shardings(mesh, shapes)
make = lambda: {"logits_dense": {"kernel": jnp.arange(24.0).reshape(4, 6)}}
state = jax.jit(make, out_shardings=placed)()
checkpoints = Checkpoints(DIRECTORY, keep=1)
for step in (1, 2):
    checkpoints.save(step, state, eval_loss=1.0)
checkpoints.wait()
again = checkpoints.restore(abstract(shapes, placed))
same = jax.jit(lambda a, b: (a == b).all())(again["logits_dense"]["kernel"], state["logits_dense"]["kernel"])
checkpoints.close()
print(json.dumps({"rows": rows.tolist(), "total": [int(n) for n in total], "same": bool(same)}))
"""


def test_two_processes_save_together_and_one_device_restores(tmp_path):
    program = f"DIRECTORY = {str(tmp_path)!r}\n{SAVE_IN_TWO_PROCESSES}"
    first, second = run(program, devices=2, processes=2)
    assert sorted([*first["rows"], *second["rows"]]) == list(range(8))
    assert first["total"] == second["total"] == [28, 280]  # 0 + 1 + ... + 7, each row read by one process
    assert first["same"] and second["same"]
    assert os.listdir(tmp_path) == ["2"]
    kernel = jnp.arange(24.0).reshape(4, 6)
    restored = Checkpoints(tmp_path, keep=None).restore(abstract_of({"logits_dense": {"kernel": jnp.zeros((4, 6))}}))
    assert_same_bits(restored, {"logits_dense": {"kernel": kernel}})
