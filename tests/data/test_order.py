"""The draw order: exact shares, every window once an epoch, a new and uniform order each epoch."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.rng import example_keys, mix64
from contract.windows import Ramp
from data.windows.order import DrawOrder, PlannedOrder, permute


def test_example_keys_depend_on_seed_example_and_piece_alone():
    examples, pieces = np.array([5, 6, 7, 6]), np.array([0, 0, 0, 1])
    keys = example_keys(3, examples, pieces)
    assert keys.dtype == np.uint64 and len(set(keys.tolist())) == 4
    assert example_keys(3, examples[[3, 1]], pieces[[3, 1]]).tolist() == keys[[3, 1]].tolist()
    assert not set(example_keys(4, examples, pieces).tolist()) & set(keys.tolist())
    # Neighbours differ in about half of their bits.
    many = example_keys(3, np.arange(2000), np.zeros(2000, np.int64))
    flipped = np.unpackbits((many[1:] ^ many[:-1]).view(np.uint8)).mean()
    assert 0.49 < flipped < 0.51


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(0, 2**64 - 1))
def test_permute_is_a_bijection(length, key):
    window = permute(np.arange(length), np.full(length, length), np.full(length, key, np.uint64))
    assert sorted(window.tolist()) == list(range(length))


@pytest.mark.parametrize("length", [2, 3, 5, 16])
def test_permute_puts_every_window_everywhere_equally_often(length):
    keys = mix64(np.arange(8000, dtype=np.uint64))
    for index in range(length):
        window = permute(np.full(8000, index), np.full(8000, length), keys)
        counts = np.bincount(window, minlength=length)
        expected = 8000 / length
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
@example([1.0, 0.03125, 0.03125, 0.03125, 0.03125])  # draws of the last four are always due at the same time
def test_shares_are_the_weights_and_stay_close_everywhere(weights):
    reader = DrawOrder([9] * len(weights), weights, seed=0).draw(np.arange(70_000, 72_000)).reader_ids
    drawn = np.cumsum(reader[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 2001)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(drawn - due).max() <= len(weights)  # in any number of consecutive examples


def test_mixing_is_even_by_hand():
    reader = DrawOrder([90, 90], [1, 3], seed=0).draw(np.arange(8)).reader_ids
    assert reader.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]


def test_readers_and_seeds_have_orders_of_their_own():
    reader, _, window, _ = DrawOrder([500, 500], [1, 1], seed=0).draw(np.arange(1000))
    first, second = window[reader == 0], window[reader == 1]
    assert (first == second).mean() < 0.02
    for seed in (1, -1, 2**64, 10**40):
        other = DrawOrder([500, 500], [1, 1], seed=seed).draw(np.arange(1000)).indices
        assert (other == window).mean() < 0.02


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("weights", [(-1.0, 2.0), (0.0, 0.0), (NAN, 1.0), (INF, 1.0), (1.0, 0.0)])
def test_invalid_weights(weights):
    with pytest.raises(ConfigError, match="must be finite, not negative and not all 0"):
        DrawOrder([5, 5], weights, seed=0, ramps=[Ramp(0, 10, 0.0), None])


# The weights change from (3, 1, 0) to (0, 1, 3) between the 400th and the 2400th.
WEIGHTS, FINAL = np.array([3.0, 1.0, 0.0]), np.array([0.0, 1.0, 3.0])
RAMPS = tuple(Ramp(400, 2400, weight) for weight in FINAL)


def ramp_order(lengths=(60, 35, 7), **changes):
    return DrawOrder(list(lengths), WEIGHTS, **{"seed": 0, "ramps": RAMPS} | changes)


@pytest.mark.parametrize("ramps", [(), RAMPS])
def test_every_window_once_an_epoch_and_epochs_differ(ramps):
    reader, epoch, window, key_numbers = ramp_order(ramps=ramps).draw(np.arange(5000))
    assert key_numbers.tolist() == list(range(5000))
    for k, length in enumerate([60, 35, 7][: 3 if ramps else 2]):
        drawn = window[reader == k]
        assert epoch[reader == k].tolist() == (np.arange(len(drawn)) // length).tolist()
        epochs = [drawn[i : i + length].tolist() for i in range(0, len(drawn) - length + 1, length)]
        assert len(epochs) >= 15
        assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
        assert k == 2 or len({tuple(epoch) for epoch in epochs}) == len(epochs)  # of 7 windows orders recur


def test_a_ramp_by_hand():
    # Up to example 4 only the first reader; from 8 on only the second; between them blocks of one example with shares
    # 7:1, 5:3, 3:5 and 1:7 of 8. The first reader is due 4, 4.875, 5.5, 5.875, 6 draws by examples 4 to 8, and the
    # second 0, 0.125, 0.5, 1.125, 2. So the first's draws fall due at 0.5, 1.5, 2.5, 3.5, 4 + 4/7 and 6; the second's
    # at 6, where the first reader comes first, 7 + 3/7, 8.5, 9.5, ...
    ramps = [Ramp(4, 8, 0.0), Ramp(4, 8, 2.0)]
    reader = DrawOrder([9, 9], [2.0, 0.0], seed=0, ramps=ramps).draw(np.arange(10)).reader_ids
    assert reader.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


@settings(deadline=None, max_examples=30)
@given(begin=st.integers(0, 5000), length=st.integers(100, 5000))
def test_shares_follow_a_ramp_in_any_consecutive_examples(begin, length):
    reader = ramp_order().draw(np.arange(begin, begin + length)).reader_ids
    middle = np.arange(begin, begin + length) + 0.5
    weights = WEIGHTS + (FINAL - WEIGHTS) * np.clip((middle - 400) / 2000, 0, 1)[:, None]
    drawn = np.bincount(reader, minlength=3)
    assert np.abs(drawn - (weights / 4).sum(axis=0)).max() < 2  # of 100 examples or 5000


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6000), min_size=1, max_size=40))
def test_examples_of_a_ramp_do_not_depend_on_what_else_is_drawn(examples):
    whole = ramp_order().draw(np.arange(6001))
    some = ramp_order().draw(np.array(examples))
    assert [part.tolist() for part in some] == [part[examples].tolist() for part in whole]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 5))
def test_a_cycle_repeats_and_every_window_comes_once_an_epoch(cycle, seed):
    lengths = [3, 1, 7, 4]
    order = PlannedOrder(lengths, np.array(cycle), seed=seed)
    whole = order.draw(np.arange(40 * len(cycle)))
    reader, window = whole.reader_ids, whole.indices
    assert reader.dtype == np.int32 and reader.tolist() == cycle * 40
    for k in set(cycle):
        drawn = window[reader == k]
        for epoch in drawn[: len(drawn) // lengths[k] * lengths[k]].reshape(-1, lengths[k]).tolist():
            assert sorted(epoch) == list(range(lengths[k]))
    some = np.array([39, 0, 17, 17]) % (40 * len(cycle))
    for part, of_whole in zip(order.draw(some), whole, strict=True):
        np.testing.assert_array_equal(part, of_whole[some])
