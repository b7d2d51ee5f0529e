import tracemalloc
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import rng

KEYS = np.arange(1, 2001, dtype=np.uint64) * np.uint64(7919)


def test_splitmix64_reference_values():
    # First outputs of SplitMix64 seeded with 1234567, from the authors' C program (prng.di.unimi.it/splitmix64.c).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert rng.bits(np.asarray([1234567], np.uint64), 4)[0].tolist() == expected


@given(st.lists(st.integers(0, 7)), st.lists(st.sampled_from([0, 1, 2, 1 << 40])), st.sampled_from([1, 3, 1 << 18]))
def test_argsort_is_numpys_also_where_keys_have_equal_high_bits_or_are_equal(high, low, part):
    pairs = [(a << 61) + b for a in high for b in low]
    with mock.patch.object(rng, "_PART", part):
        for keys in (np.array(pairs, np.uint64), rng.mix64(np.array(pairs, np.uint64))):
            np.testing.assert_array_equal(rng.argsort(keys.__getitem__, len(keys)), np.argsort(keys, kind="stable"))


def test_argsort_takes_the_memory_of_the_keys_and_32_bits_each():
    n = 1 << 22
    tracemalloc.start()
    rng.argsort(lambda numbers: rng.mix64(numbers.astype(np.uint64)), n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * n


def test_each_key_is_independent_of_its_neighbours_and_of_the_width():
    both = rng.uniform(KEYS[:5], 8)
    np.testing.assert_array_equal(rng.uniform(KEYS[2:3], 3)[0], both[2, :3])


def test_uniform_moments_and_folded_keys_do_not_correlate():
    a, b = rng.uniform(rng.fold_in(KEYS, 0), 50).ravel(), rng.uniform(rng.fold_in(KEYS, 1), 50).ravel()
    assert abs(a.mean() - 0.5) < 0.005 and abs(a.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.01
    assert a.min() >= 0 and a.max() < 1


def test_integers_cover_both_ends_evenly():
    counts = np.bincount(rng.integers(KEYS, 2, 5), minlength=7)
    assert counts[:2].sum() == 0 and counts[6] == 0
    assert (np.abs(counts[2:6] - 500) < 90).all()


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_choose_draws_exactly_the_count_among_the_allowed(data):
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 30))
    allowed = np.asarray(data.draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width),
                                            min_size=rows, max_size=rows)))  # fmt: skip
    counts = np.asarray([data.draw(st.integers(0, int(row.sum()))) for row in allowed])
    keys = np.asarray(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=rows, max_size=rows)), np.uint64)
    drawn = rng.choose(keys, allowed, counts)
    for row, count, positions in zip(allowed, counts, drawn, strict=True):
        positions = positions.tolist()
        assert positions[count:] == [width] * (len(positions) - count)
        assert sorted(set(positions[:count])) == positions[:count]
        assert all(row[p] for p in positions[:count])


def test_choose_makes_every_subset_equally_likely():
    keys = np.arange(6000, dtype=np.uint64)
    drawn = rng.choose(keys, np.ones((6000, 4), bool), np.full(6000, 2))
    counts = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16)
    pairs = counts[[1, 2, 3, 6, 7, 11]]
    assert pairs.sum() == 6000 and (np.abs(pairs - 1000) < 130).all()


def test_draw_makes_every_ordered_sample_equally_likely():
    keys = np.arange(6000, dtype=np.uint64)
    drawn = rng.draw(keys, np.asarray([[True, True, False, True]] * 6000), np.full(6000, 2))
    samples, counts = np.unique(drawn, axis=0, return_counts=True)
    assert samples.tolist() == [[0, 1], [0, 3], [1, 0], [1, 3], [3, 0], [3, 1]]
    assert (np.abs(counts - 1000) < 150).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=6), st.integers(0, 2**32))
def test_the_three_ways_to_draw_agree(sizes, seed):
    lengths, counts = np.asarray(sizes).T
    counts = np.minimum(counts, lengths)
    keys = np.random.default_rng(seed).integers(0, 2**63, len(sizes)).astype(np.uint64)
    allowed = np.arange(lengths.max()) < lengths[:, None]  # short rows are compared, longer ones sorted
    mask = rng.choose_mask(keys, allowed, counts)
    for e, (positions, in_order) in enumerate(
        zip(rng.draw(keys, allowed, counts), rng.choose(keys, allowed, counts), strict=True)
    ):
        assert np.sort(positions).tolist() == in_order.tolist()
        assert np.flatnonzero(mask[e]).tolist() == in_order[: counts[e]].tolist()


def test_quantiles_of_a_batch_are_evenly_spread_from_a_uniform_start():
    numbers, pieces = np.arange(4000), np.zeros(4000, np.int64)
    found = rng.quantiles(3, numbers, pieces, 8).reshape(500, 8)
    starts = found[:, 0]
    np.testing.assert_allclose((found - starts[:, None]) % 1.0, np.broadcast_to(np.arange(8) / 8, (500, 8)), atol=1e-12)
    assert abs(starts.mean() - 0.5) < 0.05 and abs(starts.var() - 1 / 12) < 0.01
    assert abs(np.corrcoef(starts[1:], starts[:-1])[0, 1]) < 0.15
    assert found.min() >= 0 and found.max() < 1
    other_pieces = rng.quantiles(3, numbers, pieces + 1, 8).reshape(500, 8)[:, 0]
    assert abs(np.corrcoef(starts, other_pieces)[0, 1]) < 0.15
    np.testing.assert_array_equal(rng.quantiles(3, numbers[37:41], pieces[:4], 8), found.ravel()[37:41])


def test_quantiles_without_a_batch_spread_every_number_of_examples():
    """The gaps of n multiples of the golden ratio have at most three lengths, and the largest is below 2 / n."""
    for first, count in ((0, 5), (0, 1000), (10**9, 1000)):
        numbers = first + np.arange(count)
        found = np.sort(rng.quantiles(3, numbers, np.zeros(count, np.int64), None))
        assert np.diff(np.append(found, found[0] + 1)).max() < 2 / count
