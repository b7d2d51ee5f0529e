"""The draw order: exact shares, every window once an epoch, a new and fair order each time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.hashing import example_keys, mix64
from data.order import DrawOrder, permute
from objectives.errors import ConfigError


def test_mix64_is_splitmix64():
    # The first three outputs of Java's SplittableRandom / Vigna's splitmix64.c from state 1234567.
    state = np.uint64(1234567) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 4, dtype=np.uint64)
    assert mix64(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


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


def test_permute_of_a_length_beyond_32_bits():
    length = np.full(1000, 10**12)
    window = permute(np.arange(1000), length, np.full(1000, 7, np.uint64))
    assert len(set(window.tolist())) == 1000 and window.min() >= 0 and window.max() < 10**12
    assert 4e11 < window.mean() < 6e11


@pytest.mark.parametrize("length", [2, 3, 5, 16])
def test_permute_sends_every_window_everywhere_equally_often(length):
    keys = mix64(np.arange(8000, dtype=np.uint64))
    for index in range(length):
        window = permute(np.full(8000, index), np.full(8000, length), keys)
        counts = np.bincount(window, minlength=length)
        expected = 8000 / length
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_neighbours_in_the_order_are_not_neighbours_in_the_corpus():
    order = DrawOrder([10_000], [1.0], seed=0, shuffle=True)
    _, window = order.draw(np.arange(10_000))
    assert (np.abs(np.diff(window)) <= 2).sum() < 20  # 4 by chance
    assert abs(np.corrcoef(np.arange(10_000), window)[0, 1]) < 0.05


def test_every_window_once_an_epoch_and_epochs_differ():
    order = DrawOrder([60, 35], [0.25, 0.75], seed=0, shuffle=True)
    source, window = order.draw(np.arange(2000))
    for k, length in enumerate([60, 35]):
        mine = window[source == k]
        epochs = [mine[i : i + length].tolist() for i in range(0, len(mine) - length + 1, length)]
        assert len(epochs) >= 8
        assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_without_shuffle_windows_come_in_order_every_epoch():
    source, window = DrawOrder([3, 5], [1, 1], seed=0, shuffle=False).draw(np.arange(16))
    assert source.tolist() == [0, 1] * 8
    assert window[source == 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert window[source == 1].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_an_example_does_not_depend_on_what_it_is_drawn_with():
    order = DrawOrder([60, 35, 7], [0.2, 0.5, 0.3], seed=-5, shuffle=True)
    source, window = order.draw(np.arange(1000))
    some = np.array([999, 0, 123, 122])
    again = order.draw(some)
    assert again[0].tolist() == source[some].tolist() and again[1].tolist() == window[some].tolist()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8))
def test_shares_are_the_weights_and_stay_close_everywhere(weights):
    source, _ = DrawOrder([9] * len(weights), weights, seed=0, shuffle=True).draw(np.arange(70_000, 72_000))
    drawn = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 2001)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(drawn - due).max() < 3  # of any number of examples in a row, not only of many


def test_mixing_is_even_by_hand():
    source, window = DrawOrder([90, 90], [1, 3], seed=0, shuffle=False).draw(np.arange(8))
    assert source.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
    assert window.tolist() == [0, 0, 1, 2, 3, 1, 4, 5]


def test_weights_are_in_any_unit_and_zero_is_never():
    source, _ = DrawOrder([4, 4, 4], [2, 0, 6], seed=0, shuffle=True).draw(np.arange(4000))
    assert np.bincount(source, minlength=3).tolist() == [1000, 0, 3000]


def test_sources_and_seeds_have_orders_of_their_own():
    source, window = DrawOrder([500, 500], [1, 1], seed=0, shuffle=True).draw(np.arange(1000))
    first, second = window[source == 0], window[source == 1]
    assert (first == second).mean() < 0.02
    for seed in (1, -1, 2**64, 10**40):
        _, other = DrawOrder([500, 500], [1, 1], seed=seed, shuffle=True).draw(np.arange(1000))
        assert (other == window).mean() < 0.02


@pytest.mark.parametrize("weights", [(-1.0, 2.0), (0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_weights_that_are_none(weights):
    with pytest.raises(ConfigError, match="must be finite, not negative and not all 0"):
        DrawOrder([5, 5], weights, seed=0, shuffle=True)


def test_a_weight_too_small_to_be_drawn_is_said_to_be():
    with pytest.raises(ConfigError, match="set one below 1/65536 of their sum to 0"):
        DrawOrder([5, 5], (1.0, 1e-7), seed=0, shuffle=True)
