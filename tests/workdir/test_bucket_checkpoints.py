"""Checkpoints in buckets gs:// and s3://: written by Orbax, complete once they have their marker, verified."""

import jax
import numpy as np
import pytest
from etils import epath
from orbax.checkpoint._src.serialization import tensorstore_utils

from contract.errors import ConfigError
from files import buckets, storage
from tests.bucket_server import BucketServer
from workdir import bucket_checkpoints
from workdir.bucket_checkpoints import COMMITTED, orbax_path, shown
from workdir.checkpoint import Checkpoints
from workdir.checkpoint_errors import DamagedCheckpointError


@pytest.fixture
def server(monkeypatch):
    server = BucketServer("test-bucket")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    buckets._open.cache_clear()
    with server.running():
        yield server
    buckets._open.cache_clear()


def state_of(step):
    return {"a": jax.numpy.arange(500.0) + step, "b": {"c": jax.numpy.full((3, 4), step, "bfloat16")}}


def shapes():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state_of(0))


each_scheme = pytest.mark.parametrize("folder", ["gs://test-bucket/run/checkpoints", "s3://test-bucket/checkpoints"])


@each_scheme
def test_checkpoints_are_saved_restored_bit_for_bit_and_deleted(folder, server):
    before = []
    checkpoints = Checkpoints(
        folder, keep=2, before_commit=lambda step: before.append(storage.is_file(f"{folder}/{step}/{COMMITTED}"))
    )
    assert checkpoints.latest_step() is None
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state_of(step), eval_loss=float(step), counters={"steps": step})
        checkpoints.wait()
    assert before == [False] * 4, "the marker is written after everything else"
    assert (checkpoints.steps(), checkpoints.best_step(), checkpoints.counters(4)) == ([1, 3, 4], 1, {"steps": 4})
    checkpoints.close()
    assert storage.list_names(folder) == ["1", "3", "4"]
    reader = Checkpoints(folder, keep=None)
    jax.tree.map(np.testing.assert_array_equal, reader.restore(shapes()), state_of(4))
    jax.tree.map(np.testing.assert_array_equal, reader.restore(shapes(), 1), state_of(1))
    reader.close()


@each_scheme
def test_an_interrupted_save_is_no_checkpoint_and_is_deleted(folder, server):
    checkpoints = Checkpoints(folder, keep=2)
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    checkpoints.close()
    storage.remove(f"{folder}/2/{COMMITTED}")
    reader = Checkpoints(folder, keep=None)
    assert reader.steps() == [1] and "2" in storage.list_names(folder), "a reader deletes nothing"
    reader.close()
    writer = Checkpoints(folder, keep=2)
    writer.save(2, state_of(5))
    writer.close()
    reader = Checkpoints(folder, keep=None)
    jax.tree.map(np.testing.assert_array_equal, reader.restore(shapes()), state_of(5))
    reader.close()


@each_scheme
def test_damage_is_found_and_set_aside(folder, server):
    checkpoints = Checkpoints(folder, keep=2)
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    checkpoints.wait()
    data = next(key for key in buckets.keys(f"{folder}/2/state") if "/d/" in key)
    storage.write_bytes(data, b"x" + storage.read_bytes(data)[1:])
    with pytest.raises(DamagedCheckpointError, match=f"checkpoint {folder}/2 is damaged .*: use .* --step=1") as error:
        for key in buckets.keys(f"{folder}/2/state"):  # the arrays are in one of these files
            if "/d/" in key:
                storage.write_bytes(key, b"x" + storage.read_bytes(key)[1:])
        checkpoints.restore(shapes())
    assert "cloze-" not in str(error.value)
    assert checkpoints.set_aside([2]) == ["damaged-2"]
    assert checkpoints.steps() == [1] and storage.list_names(folder) == ["1", "damaged-2"]
    checkpoints.close()


def test_a_bucket_that_refuses_writes_is_one_line(server):
    checkpoints = Checkpoints("gs://test-bucket/checkpoints", keep=2)
    server.forbidden = True
    with pytest.raises(ConfigError, match="a checkpoint in gs://test-bucket/checkpoints could not be written"):
        checkpoints.save(1, state_of(1))
        checkpoints.wait()
    server.forbidden = False


def test_paths_for_orbax(server, tmp_path):
    assert orbax_path(str(tmp_path)) == epath.Path(tmp_path)
    path = orbax_path("s3://test-bucket//a/b/")
    assert shown(path / "c") == "s3://test-bucket/a/b/c" and epath.Path(str(path / "c")) == path / "c"
    assert path.is_absolute() and not path.exists() and list(path.iterdir()) == []
    (path / "c").write_text("é\n")
    (path / "d" / "e.json").write_bytes(b"{}")
    assert (path / "c").read_text() == "é\n" and (path / "c").stat().length == 3
    assert sorted(child.name for child in path.iterdir()) == ["c", "d"]
    assert [shown(found) for found in path.glob("*/*.json")] == ["s3://test-bucket/a/b/d/e.json"]
    assert [found.name for found in path.glob("d*")] == ["d"]
    with pytest.raises(FileExistsError):
        path.mkdir()
    with pytest.raises(FileNotFoundError):
        (path / "none").unlink()
    with pytest.raises(RuntimeError), (path / "half").open("w") as file:
        file.write("half")
        raise RuntimeError
    assert not (path / "half").exists(), "a file that was not finished is not written"
    path.rmtree()
    assert server.objects["test-bucket"] == {}


def test_another_orbax_is_refused_in_one_line(monkeypatch):
    bucket_checkpoints._extend_orbax.cache_clear()
    with monkeypatch.context() as patch:
        patch.delattr(tensorstore_utils, "_use_gcs_driver")
        with pytest.raises(ConfigError, match=r"this version of Orbax, .*, cannot write to buckets"):
            orbax_path("gs://test-bucket/run")
    orbax_path("gs://test-bucket/run")
