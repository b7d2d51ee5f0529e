"""The draws of dropout within fused kernels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.kernels.dropout import dropout_seeds, keeps
from models.placement import part_of_rows


def keep_mask(key, rows, heads, queries, keys, rate):
    """bool [rows, heads, queries, keys]: the probabilities that the kernels keep."""
    seeds = dropout_seeds(key, rows, heads)[..., None, None]
    return keeps((seeds[:, 0], seeds[:, 1]), jnp.arange(queries)[:, None], jnp.arange(keys), rate)


def test_the_draws_of_dropout_by_definition():
    """In Python's integers; and the draws of a part of the batch's rows."""

    def mixed(x):
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = ((x ^ (x >> shift)) * factor) % 2**32
        return x ^ (x >> 16)

    key = jax.random.key(5)
    seeds, keep = np.asarray(dropout_seeds(key, 3, 2)), np.asarray(keep_mask(key, 3, 2, 7, 9, 0.3))
    for row, head, *indices in np.ndindex(keep.shape):
        seeds_of_head = (int(seed) for seed in seeds[row, :, head])
        of_queries, of_keys = (
            mixed((mixed(index) + seed) % 2**32) for index, seed in zip(indices, seeds_of_head, strict=True)
        )
        bits = mixed((of_queries + of_keys) % 2**32)
        assert keep[row, head, *indices] == (bits >> 8 >= 0.3 * 2**24)
    with part_of_rows(lambda rows: 3 - rows):
        assert (np.asarray(dropout_seeds(key, 2, 2)) == seeds[1:]).all()


def test_draws_of_dropout_have_their_rate_and_are_independent():
    keep = np.asarray(keep_mask(jax.random.key(0), 4, 8, 128, 256, 0.1), np.float64)
    standard_error = (0.09 / keep.size) ** 0.5
    assert abs(keep.mean() - 0.9) < 4 * standard_error
    centered = keep - 0.9
    for axis in range(4):  # neighbours along rows, heads, queries and keys
        first, second = (np.take(centered, range(k, keep.shape[axis] - 1 + k), axis) for k in (0, 1))
        assert abs((first * second).mean()) < 4 * 0.09 / first.size**0.5
    for axes in ((0, 1, 2), (0, 1, 3), (2, 3)):  # no key, no query and no head is kept too often
        means = keep.mean(axes)
        assert means.std() == pytest.approx((0.09 / (keep.size / means.size)) ** 0.5, rel=0.35)


def test_masks_of_seeds_that_differ_by_small_numbers_are_unrelated():
    """Wherever one mask is moved by 0 to 8 queries and keys, it equals the other at the rate of independent draws."""
    rate, n, largest = 0.1, 128, 8

    def mask(*seeds):
        seeds = (jnp.int32(seed) for seed in seeds)
        return np.asarray(keeps(tuple(seeds), jnp.arange(n)[:, None], jnp.arange(n), rate))

    first = mask(123456789, -987654321)
    expected = rate**2 + (1 - rate) ** 2
    shifts = range(-largest, largest + 1)
    for of_queries, of_keys in ((1, 0), (0, 1), (3, -3), (-8, 8), (5, 2)):
        second = mask(123456789 + of_queries, -987654321 + of_keys)
        for q, k in itertools.product(shifts, shifts):
            moved = np.roll(first, (q, k), (0, 1))
            part = np.s_[max(q, 0) : n + min(q, 0), max(k, 0) : n + min(k, 0)]
            equal = (moved == second)[part]
            assert abs(equal.mean() - expected) < 6 * (expected * (1 - expected) / equal.size) ** 0.5, (q, k)
