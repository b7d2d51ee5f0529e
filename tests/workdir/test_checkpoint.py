"""Checkpoints: restored bit for bit, complete or absent, and never a wrong value from a damaged file."""

import errno
import json
import os
import random
import shutil
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from cluster.cluster import Cluster
from contract.errors import ConfigError
from files import paths
from files.atomic import write_bytes
from tests.train.subprocesses import run
from workdir import checkpoint as checkpoint_module
from workdir.checkpoint import Checkpoints, DamagedCheckpointError, abstract

COUNTERS = {"step": 2, "seconds": 0.1 + 0.2, "examples": [2**70, 3], "loss": float("inf")}
FLIPS = 2  # bits of each file, drawn anew in each run of the test


def state_of(seed):
    """A state with parameters (one is a negative zero), averages, an optimizer's named tuples and a counter."""
    rng = np.random.default_rng(seed)
    params = {"dense": {"kernel": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), "bias": jnp.float32([0.0, -0.0])}}
    average = {"dense": {"kernel": params["dense"]["kernel"] / 2, "half": jnp.arange(5, dtype=jnp.bfloat16)}}
    opt_state = optax.adamw(0.1).init(params)
    return {"params": params, "opt_state": opt_state, "step": jnp.int32(seed), "ema_params": average}


def abstract_of(state):
    return abstract(state, jax.tree.map(lambda leaf: leaf.sharding, state))


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def reader(directory):
    return Checkpoints(directory, keep=None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 1..6 with keep=2."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    losses = {1: 3.0, 2: None, 3: 1.0, 4: float("nan"), 5: 2.0, 6: None}
    checkpoints = Checkpoints(directory, keep=2)
    assert (checkpoints.latest_step(), checkpoints.best_step()) == (None, None)
    for step, loss in losses.items():
        checkpoints.save(step, state_of(step), eval_loss=loss, counters=COUNTERS)
    checkpoints.close()
    return directory


def test_keeps_the_newest_and_the_best(saved):
    assert sorted(os.listdir(saved)) == ["3", "5", "6"]
    assert (reader(saved).latest_step(), reader(saved).best_step()) == (6, 3)


def test_a_step_that_is_not_above_the_newest_is_not_saved_again(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    checkpoints = Checkpoints(directory, keep=2)
    for step in (4, 6):
        checkpoints.save(step, state_of(7))
    checkpoints.close()
    assert checkpoints.steps() == [3, 5, 6]
    assert_same_bits(reader(directory).restore(abstract_of(state_of(0))), state_of(6))


def test_folders_of_other_names_are_no_steps(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    for name in ("05", "\u0663"):  # an Arabic-Indic digit
        shutil.copytree(directory / "5", directory / name)
    assert reader(directory).steps() == [3, 5, 6]


@pytest.mark.parametrize("name", ["a\\b", "gs:", "\udcff"])
def test_a_folder_that_orbax_would_change_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="Orbax would write to another folder"):
        reader(tmp_path / name / "checkpoints")


@pytest.mark.parametrize("step", [None, 3])
def test_restores_every_bit_and_the_counters_exactly(saved, step):
    assert_same_bits(reader(saved).restore(abstract_of(state_of(0)), step), state_of(step or 6))
    averages = abstract_of(state_of(0)["ema_params"])
    params, found = reader(saved).restore_params(averages, step)
    assert_same_bits(params, state_of(step or 6)["ema_params"])
    assert found == (step or 6) and reader(saved).counters(found) == COUNTERS


@pytest.mark.parametrize(
    ("name", "leaf", "named"),
    [
        ("kernel", jnp.zeros((4, 7)), r"kernel is float32\[4, 6\] there and float32\[4, 7\] here: use"),
        ("kernel", jnp.zeros((4, 6), jnp.bfloat16), r"is float32\[4, 6\] there and bfloat16\[4, 6\] here"),
        ("scale", jnp.zeros(2), r"params/dense/scale is missing there and float32\[2\] here"),
    ],
)
def test_a_state_of_other_arrays_is_an_error(saved, name, leaf, named):
    other = state_of(0)
    other["params"]["dense"][name] = leaf
    with pytest.raises(ConfigError, match=named) as error:
        reader(saved).restore(abstract_of(other))
    assert "\n" not in str(error.value)


def test_a_missing_step_is_named(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoint of step 4 .* \[3, 5, 6\]"):
        reader(saved).restore(abstract_of(state_of(0)), 4)
    with pytest.raises(ConfigError, match="no checkpoint in"):
        reader(tmp_path / "nothing").restore(abstract_of(state_of(0)))
    assert not (tmp_path / "nothing").exists()


def test_processes_that_list_other_steps_read_the_same_newest_one(saved, monkeypatch):
    """Of a run that is still training: another process does not see the newest checkpoint yet."""
    monkeypatch.setattr(Cluster, "all_gather", lambda self, value: [value, 5 if isinstance(value, int) else value])
    params, step = reader(saved).restore_params(abstract_of(state_of(0)["ema_params"]))
    assert step == 5
    assert_same_bits(params, state_of(5)["ema_params"])


def test_a_half_written_checkpoint_is_ignored_and_deleted_when_the_run_continues(tmp_path):
    first = Checkpoints(tmp_path, keep=3)
    first.save(1, state_of(1))
    first.close()
    unfinished = tmp_path / f"2{ocp.utils.TMP_DIR_SUFFIX}"
    (unfinished / "state").mkdir(parents=True)
    (unfinished / "state" / "0.0").write_bytes(b"half")
    assert reader(tmp_path).latest_step() == 1
    assert unfinished.exists(), "a reader may run during a save"
    second = Checkpoints(tmp_path, keep=3)
    assert second.latest_step() == 1 and not unfinished.exists()
    second.save(2, state_of(2))
    second.close()
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = {"x": jnp.arange(100_000.0)}
    checkpoints.save(1, state)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    overwrite(state)
    checkpoints.close()
    restored = reader(tmp_path).restore(abstract_of({"x": jnp.zeros(100_000)}))
    np.testing.assert_array_equal(restored["x"], np.arange(100_000.0))


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"a checkpoint in .*/file/checkpoints could not be written: .*directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("orbax.checkpoint.JsonCheckpointHandler.finalize", Mock(side_effect=full), raising=False)
    checkpoints.save(1, state_of(1))
    with pytest.raises(ConfigError, match="could not be written: No space left on device: free space"):
        checkpoints.wait()
    assert checkpoints.latest_step() is None


def damages(path):
    """Yields the name of a damage after it was done to the file, which is then intact again."""
    contents = path.read_bytes()
    for name, damaged in (("empty", b""), ("half", contents[: len(contents) // 2]), ("zeroed", bytes(len(contents)))):
        path.write_bytes(damaged)
        yield name
    for bit in random.sample(range(8 * len(contents)), min(FLIPS, 8 * len(contents))):
        flipped = bytearray(contents)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        yield f"bit {bit}"
    path.unlink()
    yield "removed"
    path.write_bytes(contents)


def outcomes(directory, step):
    """Returns, for reading the state and for reading parameters, the error or None after comparing all values."""

    def state(checkpoints):
        assert_same_bits(checkpoints.restore(abstract_of(state_of(0)), step), state_of(step))
        assert checkpoints.counters(step) == COUNTERS

    def params(checkpoints):
        wanted = abstract_of(state_of(0)["ema_params"])
        assert_same_bits(checkpoints.restore_params(wanted, step)[0], state_of(step)["ema_params"])

    found = []
    for read in (state, params):
        try:
            read(reader(directory))
            found.append(None)
        except DamagedCheckpointError as error:
            found.append(str(error))
    return found


def test_no_damage_of_a_file_changes_a_value_or_ends_in_a_traceback(saved, tmp_path, capfd):
    directory = shutil.copytree(saved, tmp_path / "copy")
    refused = set()
    for path in [path for path in sorted((directory / "6").rglob("*")) if path.is_file()]:
        for name in damages(path):
            for message in filter(None, outcomes(directory, 6)):
                refused.add(str(path.relative_to(directory / "6")))
                assert "\n" not in message and len(message) < 500, (path, name)
                assert message.startswith(f"checkpoint {directory}/6 is damaged ("), (path, name)
                assert message.endswith(": use the one before it, --step=5"), (path, name)
    arrays = {"params.dense.kernel/0.0", "params.dense.kernel/.zarray", "step/0", "ema_params.dense.half/0"}
    assert refused >= {f"state/{name}" for name in arrays} | {"record/record.json"}
    assert outcomes(directory, 6) == [None, None]
    assert capfd.readouterr().err == "", "TensorStore prints no tracebacks"


def test_a_flipped_bit_of_an_array_is_named_and_of_the_record_is_never_the_best(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    path = directory / "6" / "state" / "params.dense.bias" / "0"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    state, params = outcomes(directory, 6)
    assert "params/dense/bias" in state and params is None
    record = directory / "3" / "record" / "record.json"
    record.write_text(record.read_text().replace('"eval_loss": 1.0', '"eval_loss": 0.5'))
    assert reader(directory).best_step() == 5
    with pytest.raises(
        DamagedCheckpointError, match=r"record.json differs from its checksum\): no checkpoint is befor"
    ):
        reader(directory).counters(3)


def test_errors_of_access_are_no_damage(saved, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("PERMISSION_DENIED: Error reading local file")

    monkeypatch.setattr("orbax.checkpoint.PyTreeCheckpointHandler.restore", refuse)
    with pytest.raises(ConfigError, match="/6 cannot be read: PERMISSION_DENIED") as error:
        reader(saved).restore(abstract_of(state_of(0)))
    assert not isinstance(error.value, DamagedCheckpointError)


def test_a_renamed_checkpoint_is_no_longer_read_and_its_step_can_be_saved_again(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    for names in (["damaged-6"], ["damaged-6-2"]):
        checkpoints = Checkpoints(directory, keep=2)
        assert checkpoints.set_aside([6]) == names and checkpoints.steps() == [3, 5]
        checkpoints.save(6, state_of(7), counters=COUNTERS)
        checkpoints.close()
    assert sorted(os.listdir(directory)) == ["3", "5", "6", "damaged-6", "damaged-6-2"]
    assert_same_bits(reader(directory).restore(abstract_of(state_of(0))), state_of(7))


@pytest.mark.slow
def test_checkpoints_in_a_bucket(bucket, monkeypatch):
    """They are saved, restored and deleted as local ones, and are complete once they have commit_success.txt."""
    if bucket.startswith("gs"):  # no server of this machine answers the requests of TensorStore's gcs driver
        monkeypatch.setattr(checkpoint_module, "_UPLOADED", ("gs://",))
    checkpoints = Checkpoints(bucket, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state_of(step), eval_loss=float(step), counters=COUNTERS)
    checkpoints.wait()
    assert (checkpoints.steps(), checkpoints.best_step()) == ([1, 3, 4], 1)
    assert paths.list_names(bucket) == ["1", "3", "4"]
    assert outcomes(bucket, 4) == outcomes(bucket, 1) == [None, None]
    paths.remove(f"{bucket}/4/commit_success.txt")
    assert reader(bucket).steps() == [1, 3] and "4" in paths.list_names(bucket), "a reader deletes nothing"
    checkpoints = Checkpoints(bucket, keep=2)
    assert paths.list_names(bucket) == ["1", "3"]
    write_bytes(f"{bucket}/3/state/params.dense.bias/0", b"damaged")
    assert outcomes(bucket, 3)[0].startswith(f"checkpoint {bucket}/3 is damaged (")
    assert checkpoints.set_aside([3]) == ["damaged-3"] and paths.list_names(bucket) == ["1", "damaged-3"]


IN_TWO_PROCESSES = """
import json, pathlib
from jax.sharding import NamedSharding, PartitionSpec as P
distributed()
import jax.numpy as jnp, numpy as np
from workdir.checkpoint import Checkpoints, DamagedCheckpointError, abstract
from cluster.cluster import Cluster
from experiment.config import MeshConfig
from run.sharding import make_mesh

mesh = make_mesh(MeshConfig("jit", data=1, fsdp=2, tensor=1))
sharding = NamedSharding(mesh, P("fsdp"))
host = np.arange(6000, dtype=np.float32).reshape(2, 3000)
state = {"x": jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])}
checkpoints = Checkpoints(DIRECTORY, keep=2)
wanted, found = abstract(state, {"x": sharding}), []
checkpoints.save(1, state, counters={})
for truncates in (True, False):
    checkpoints.save(2, state, counters={})
    checkpoints.wait()
    path = pathlib.Path(DIRECTORY, "2", "state", "x", "1.0")  # the shard of process 1
    if jax.process_index() == 0:
        contents = bytearray(path.read_bytes())
        contents[-1] ^= 1
        path.write_bytes(contents[: len(contents) // 2] if truncates else contents)
    Cluster().all_gather(None)
    try:
        checkpoints.restore(wanted)
    except DamagedCheckpointError as error:
        found.append(str(error))
    found += checkpoints.set_aside([2])
    checkpoints.close()
    checkpoints = Checkpoints(DIRECTORY, keep=2)
again = checkpoints.restore(wanted)
same = bool(jax.jit(lambda a, b: (a == b).all())(again["x"], state["x"]))
checkpoints.close()
print(json.dumps([found, same, checkpoints.steps()]))
"""


@pytest.mark.slow
def test_two_processes_save_together_find_the_damage_that_one_reads_and_one_device_restores(tmp_path):
    program = f"DIRECTORY = {str(tmp_path)!r}\n{IN_TWO_PROCESSES}"
    first, second = run(program, devices=1, processes=2, timeout=60)
    assert first == second
    (truncated, name, flipped, other_name), same, steps = first
    assert (name, other_name) == ("damaged-2", "damaged-2-2") and same and steps == [1]
    for message in (truncated, flipped):
        assert message.startswith(f"checkpoint {tmp_path}/2 is damaged (") and message.endswith("--step=1")
    expected = jnp.arange(6000, dtype=jnp.float32).reshape(2, 3000)
    assert_same_bits(reader(tmp_path).restore(abstract_of({"x": jnp.zeros((2, 3000))}), 1), {"x": expected})
    assert json.loads((tmp_path / "1" / "record" / "record.json").read_text())["counters"] == {}


@pytest.mark.parametrize("leaf", [np.array(None), jax.ShapeDtypeStruct((), np.float32), "text"])
def test_a_leaf_that_orbax_reads_as_no_array_is_damage(saved, monkeypatch, leaf):
    restore = ocp.PyTreeCheckpointHandler.restore

    def without_arrays(*arguments, **options):
        return jax.tree.map(lambda _: leaf, restore(*arguments, **options))

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", without_arrays)
    for message in outcomes(saved, 6):
        assert "is no array of" in message
