"""Checksums of a tree of arrays, computed where the arrays are."""

import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from contract.rng import mix32
from models.parameters import leaf_name

_GOLDEN = np.uint32(0x9E3779B9)  # 2^32 divided by the golden ratio
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}  # size of an element -> what its bits are read as
_BLOCK = 1 << 20  # elements that NumPy reads at a time, which bounds the memory of temporary arrays


def checksums(tree: Any) -> dict[str, str]:
    """Returns name (models.parameters.leaf_name) -> the checksum of that array, 16 hexadecimal digits.

    A checksum is a function of an array's values and shape alone. It is the same for every mesh, sharding and number of
    processes, because it consists of two sums of uint32 over the elements, and sums modulo 2^32 do not depend on their
    order. An element's term is a mix of its bits with its index in the whole array. The mix is a bijection of the bits,
    so a change of one element always changes both sums. Other damage, such as swapped or zeroed elements, leaves both
    unchanged with a probability of 2^-64.

    Arrays on accelerators are read there, by a function that is compiled once per shape, dtype and sharding. Arrays on
    CPUs are read by NumPy, which needs no compilation.

    tree: arrays of JAX or NumPy, and PRNG keys. With several processes, all must call this function with the same tree:
    the sums of a sharded array are added up over its devices. Copies of a replicated array are not compared: each
    process reads its own.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    sums = jax.device_get([_sums_of(leaf) for _, leaf in leaves])
    return {leaf_name(path): f"{int(a):08x}{int(b):08x}" for (path, _), (a, b) in zip(leaves, sums, strict=True)}


def _sums_of(leaf: Any) -> jax.Array | np.ndarray:
    """Returns the two sums of an array, uint32 [2], on its devices."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if not isinstance(leaf, jax.Array):
        return _sums_of_host(np.asarray(leaf))
    if leaf.is_fully_replicated:
        leaf = leaf.addressable_data(0)
    if leaf.is_fully_addressable and all(device.platform == "cpu" for device in leaf.devices()):
        return _sums_of_host(np.asarray(leaf))
    return _compiled(leaf.sharding.mesh if isinstance(leaf.sharding, NamedSharding) else None)(leaf)


@functools.cache
def _compiled(mesh: Mesh | None) -> Any:
    """Returns `_sums` of a whole array, with its result on all devices of `mesh`, and so in all processes."""

    def sums(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape or (1,))
        bits = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, _unsigned(x))
        return _sums(jnp, bits, jnp.arange(len(x), dtype=jnp.uint32))

    return jax.jit(sums, out_shardings=None if mesh is None else NamedSharding(mesh, P()))


def _sums_of_host(x: np.ndarray) -> np.ndarray:
    x = x.reshape(x.shape or (1,))
    rows = max(1, _BLOCK // max(1, x[:1].size))
    total = np.zeros(2, np.uint32)
    for first in range(0, len(x), rows):
        block = x[first : first + rows]
        total += _sums(np, _host_bits(block), np.arange(first, first + len(block), dtype=np.uint32))
    return total


def _host_bits(x: np.ndarray) -> np.ndarray:
    """Returns the bits of each element as an unsigned integer; of elements of 64 bits as two, along a new last axis."""
    wide = x.dtype.itemsize == 8
    return np.ascontiguousarray(x[..., None] if wide else x).view(_unsigned(x)).reshape(x.shape + (2,) * wide)


def _unsigned(x: Any) -> Any:
    return _UNSIGNED[x.dtype.itemsize]


def _sums(xp: ModuleType, bits: Any, rows: Any) -> Any:
    """Returns the two sums of the slices `rows`, uint32 [n], of an array, with numpy or jax.numpy as `xp`.

    bits: of these slices, unsigned [n, ...].
    """
    # Not the index in the flattened array: to flatten a sharded array, each device would need all of it.
    index = mix32(rows + _GOLDEN)
    for size in bits.shape[1:]:
        index = mix32(index[..., None] + xp.arange(size, dtype=xp.uint32))
    bits = bits.astype(xp.uint32)
    terms = [mix32(bits ^ index), mix32(bits + mix32(index ^ _GOLDEN))]
    return xp.stack([term.sum(dtype=xp.uint32) for term in terms])
