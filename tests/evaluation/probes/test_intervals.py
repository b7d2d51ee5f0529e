"""Intervals that contain the true value about as often as they say, and none where the data do not determine them."""

import math

import numpy as np
import pytest

from evaluation.probes import probe
from evaluation.probes.probe import mean_interval, mean_stderr, ratio_interval, ratio_stderr


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(probe, "NUM_RESAMPLES", 1000)


def test_the_interval_of_a_ratio_covers_the_truth():
    """Documents of skewed lengths, whose loss per byte varies between documents and with their length."""
    rng, covered, trials = np.random.default_rng(0), 0, 300

    def documents(count):
        num_bytes = np.ceil(rng.gamma(2.0, 50.0, count))
        return num_bytes * rng.gamma(4.0, 0.5, count) * (1 + 20 / num_bytes), num_bytes

    nats, num_bytes = documents(2_000_000)
    truth = nats.sum() / num_bytes.sum()
    for _ in range(trials):
        low, high = ratio_interval(*documents(200))
        covered += low <= truth <= high
    assert 0.91 <= covered / trials <= 0.98


def test_pairs_are_drawn_within_their_group():
    """Two groups of different difficulty: drawn together, pairs would vary between the groups too."""
    values = np.repeat([1.0, 0.0, 1.0, 0.0], [29, 1, 2, 68])
    low, high = mean_interval(values, np.repeat([0, 1], [30, 70]))
    assert 0.26 < low < 0.31 < high < 0.36
    low, high = mean_interval(values, np.zeros(100, int))
    assert 0.18 < low < 0.27 and 0.35 < high < 0.43


def test_an_accuracy_is_resampled_as_a_ratio_over_pairs_is_and_many_pairs_by_percentiles(monkeypatch):
    values = np.random.default_rng(2).choice([0.0, 0.5, 1.0], 150)
    expected = ratio_interval(values, np.ones(150))
    assert mean_interval(values, np.zeros(150, int)) == pytest.approx(expected, abs=0.015)
    monkeypatch.setattr(probe, "_MOST_FOR_BCA", 149)
    assert mean_interval(values, np.zeros(150, int)) == pytest.approx(expected, abs=0.02)


def test_data_that_do_not_determine_a_spread_have_no_interval():
    values = np.tile([0.0, 1.0, 1.0], 3)
    for n, has_interval in {1: False, 2: False, 7: False, 8: True}.items():
        assert (ratio_interval(values[:n], np.ones(n)) is not None) == has_interval
        assert (mean_interval(values[:n], np.zeros(n, int)) is not None) == has_interval
    values, strata = np.tile([0.0, 1.0], 10), np.repeat(np.arange(5), 4)
    assert mean_interval(values, strata) is not None
    assert mean_interval(np.append(values, 1.0), np.append(strata, 5)) is None, "a group of one pair"
    assert ratio_interval(np.arange(1.0, 10.0), np.arange(1.0, 10.0)) is None, "equal ratios"
    assert mean_interval(np.repeat([1.0, 0.0], [30, 70]), np.repeat([0, 1], [30, 70])) is None, "equal in each group"


def test_standard_errors_by_hand():
    """Documents of 2 and 6 bytes with 1 and 5 nats: 6 / 8 nats a byte, and residuals of -0.5 and 0.5."""
    assert ratio_stderr(np.array([1.0, 5.0]), np.array([2.0, 6.0])) == pytest.approx(math.sqrt(2 * (0.25 + 0.25)) / 8)
    assert ratio_stderr(np.array([1.0]), np.array([2.0])) is None
    assert ratio_stderr(np.array([1.0, 3.0]), np.array([2.0, 6.0])) is None, "equal ratios"
    values, strata = np.array([0.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1])
    assert mean_stderr(values, 0 * strata) == pytest.approx(math.sqrt(4 * 2.25) / 4)
    assert mean_stderr(values, strata) == pytest.approx(math.sqrt(2 * 0.5) / 4), "the second group has no spread"
    assert mean_stderr(values[:3], strata[:3]) is None, "a group of one pair"
