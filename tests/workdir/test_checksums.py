import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.subprocesses import run
from workdir import checksums as module
from workdir.checksums import checksums

ARRAYS = {
    "float32": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4),
    "bfloat16": np.asarray(jnp.linspace(-3, 3, 40, dtype=jnp.bfloat16)).reshape(8, 5),
    "int32": np.arange(-5, 5, dtype=np.int32),
    "bool": np.array([True, False, True]),
    "int8": np.arange(-4, 4, dtype=np.int8),
    "scalar": np.float32(0.5),
    "nothing": np.zeros((0, 3), np.float32),
}


def sum_of(array):
    [checksum] = checksums({"x": array}).values()
    return checksum


def compiled_sum_of(array):
    """The checksum as an accelerator computes it."""
    a, b = module._compiled(None)(jnp.asarray(array))
    return f"{int(a):08x}{int(b):08x}"


@pytest.mark.parametrize("name", ARRAYS)
def test_the_compiled_function_and_numpy_agree(name):
    assert sum_of(ARRAYS[name]) == sum_of(jnp.asarray(ARRAYS[name])) == compiled_sum_of(ARRAYS[name])


def test_arrays_that_numpy_reads_in_blocks_have_the_same_checksum(monkeypatch):
    array = np.random.default_rng(0).normal(size=(7, 6, 5)).astype(np.float32)
    whole = sum_of(array)
    monkeypatch.setattr(module, "_BLOCK", 60)
    assert sum_of(array) == whole == compiled_sum_of(array)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "int8", "scalar"])
def test_a_flip_of_any_bit_changes_both_sums(name):
    array = np.atleast_1d(ARRAYS[name])
    saved = sum_of(array)
    for bit in range(array.nbytes * 8):
        data = bytearray(array.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        flipped = sum_of(np.frombuffer(data, array.dtype).reshape(array.shape))
        assert flipped[:8] != saved[:8] and flipped[8:] != saved[8:]


def test_other_changes_of_equal_sums_of_bits_are_seen():
    array = np.random.default_rng(0).integers(0, 5, size=(6, 8)).astype(np.int32)
    others = {
        "swapped elements": array.reshape(-1)[[1, 0, *range(2, 48)]].reshape(6, 8),
        "swapped rows": array[[1, 0, 2, 3, 4, 5]],
        "swapped columns": array[:, [1, 0, 2, 3, 4, 5, 6, 7]],
        "moved by a row": np.roll(array, 1, axis=0),
        "a zeroed block": np.where(np.arange(48).reshape(6, 8) < 16, 0, array),
        "another shape": array.reshape(8, 6),
        "a row less": array[:-1],
        "a negative zero": array.astype(np.float32) * -1,
    }
    assert len({sum_of(array), *map(sum_of, others.values())}) == 1 + len(others)


SHARDED = """
import json
from jax.sharding import NamedSharding, PartitionSpec as P
distributed()
import jax.numpy as jnp, numpy as np
from workdir.checksums import checksums
from experiment.config import MeshConfig
from run.sharding import make_mesh
from workdir import checksums as module

mesh = make_mesh(MeshConfig("jit", data=1, fsdp=2, tensor=2))
host = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
put = lambda *spec: jax.make_array_from_callback((8, 6), NamedSharding(mesh, P(*spec)), lambda index: host[index])
arrays = {"replicated": put(), "rows": put("fsdp"), "columns": put(None, "tensor"), "both": put("fsdp", "tensor")}
sums = checksums(arrays)
compiled = {name: "".join(f"{int(a):08x}" for a in module._compiled(mesh)(array)) for name, array in arrays.items()}
copy = jax.pmap(lambda x, device: x, in_axes=(None, 0), out_axes=None)
pmapped = copy(host, np.arange(jax.local_device_count()))
print(json.dumps([*sums.values(), *compiled.values(), checksums({"x": pmapped})["x"], checksums({"x": host})["x"]]))
"""


@pytest.mark.slow
def test_a_checksum_depends_on_no_mesh_and_no_number_of_processes():
    expected = sum_of(np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32))
    for sums in run(SHARDED, devices=2, processes=2):
        assert sums == [expected] * 10


def test_an_element_of_64_bits_is_two_words():
    assert module._host_bits(np.array([1, 2**32 + 5], np.int64)).tolist() == [[1, 0], [5, 1]]
