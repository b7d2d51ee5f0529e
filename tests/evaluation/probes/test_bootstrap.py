"""Intervals that contain the true value about as often as they say, and that do not depend on how they are computed."""

import numpy as np
import pytest

from evaluation.probes import bootstrap
from evaluation.probes.bootstrap import mean_interval, ratio_interval


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 1000)


def test_the_interval_of_a_ratio_covers_the_truth_in_95_percent_of_corpora():
    """Documents of skewed lengths, whose loss per byte varies between documents and with their length."""
    rng, covered, trials = np.random.default_rng(0), 0, 600
    truth = None
    for trial in range(-1, trials):
        count = 2_000_000 if trial < 0 else 20
        num_bytes = np.ceil(rng.gamma(2.0, 50.0, count))
        nats = num_bytes * rng.gamma(4.0, 0.5, count) * (1 + 20 / num_bytes)
        if trial < 0:
            truth = nats.sum() / num_bytes.sum()
            continue
        low, high = ratio_interval(nats, num_bytes)
        covered += low <= truth <= high
    assert 0.925 <= covered / trials <= 0.975


def test_the_interval_of_an_accuracy_covers_the_truth_in_95_percent_of_files():
    """Two groups of pairs of different difficulty, with a fixed number of pairs each."""
    rng, covered, trials = np.random.default_rng(1), 0, 400
    strata = np.repeat([0, 1], [60, 140])
    rates = np.array([0.9, 0.6])[strata]
    for _ in range(trials):
        low, high = mean_interval((rng.random(200) < rates).astype(float), strata)
        covered += low <= rates.mean() <= high
    assert 0.92 <= covered / trials <= 0.98


@pytest.mark.parametrize("pairs", [2, 3, 10])
def test_the_interval_of_an_accuracy_covers_the_truth_with_few_pairs_in_each_group(pairs):
    """67 groups, as BLiMP has. With draws of as many pairs as the group has, 2 pairs covered 83% and 3 pairs 86%."""
    rng, covered, trials = np.random.default_rng(1), 0, 300
    rates, strata = rng.uniform(0.4, 0.9, 67)[:, None], np.repeat(np.arange(67), pairs)
    for _ in range(trials):
        low, high = mean_interval((rng.random((67, pairs)) < rates).astype(float).ravel(), strata)
        covered += low <= rates.mean() <= high
    assert 0.92 <= covered / trials <= 0.98


def test_pairs_are_drawn_within_their_group():
    """Two groups of different difficulty: drawn together, pairs would vary between the groups too."""
    values = np.repeat([1.0, 0.0, 1.0, 0.0], [29, 1, 2, 68])
    low, high = mean_interval(values, np.repeat([0, 1], [30, 70]))
    assert 0.27 < low < 0.31 < high < 0.36
    low, high = mean_interval(values, np.zeros(100, int))
    assert 0.18 < low < 0.27 and 0.35 < high < 0.43


def test_a_group_of_one_pair_has_no_spread():
    values, strata = np.tile([0.0, 1.0], 10), np.repeat(np.arange(5), 4)
    assert mean_interval(values, strata) is not None
    assert mean_interval(np.append(values, 1.0), np.append(strata, 5)) is None
    assert mean_interval(values, np.arange(20)) is None


def test_an_accuracy_is_resampled_as_a_ratio_over_pairs_is():
    values = np.random.default_rng(2).choice([0.0, 0.5, 1.0], 150)
    expected = ratio_interval(values, np.ones(150))
    assert mean_interval(values, np.zeros(150, int)) == pytest.approx(expected, abs=0.015)


def test_intervals_are_the_same_in_every_call_and_scale_with_the_unit():
    nats = np.random.default_rng(3).random(12)
    interval = ratio_interval(nats, np.ones(12))
    assert interval == ratio_interval(nats, np.ones(12)) and interval.low < nats.mean() < interval.high
    assert interval.scaled(2.0) == pytest.approx(ratio_interval(2 * nats, np.ones(12)))


def test_the_memory_limit_does_not_change_the_interval(monkeypatch):
    nats = np.random.default_rng(4).random(9)
    whole = ratio_interval(nats, np.ones(9))
    monkeypatch.setattr(bootstrap, "_CHUNK", 100)
    assert ratio_interval(nats, np.ones(9)) == whole


def test_quantiles_of_students_t():
    """Values of printed tables, at the level 0.975."""
    for freedom, quantile in {5: 2.571, 10: 2.228, 35: 2.030, 1000: 1.962}.items():
        assert bootstrap._student_t(1.959964, freedom) == pytest.approx(quantile, abs=5e-3)


def test_fewer_than_eight_documents_or_pairs_have_no_interval():
    values = np.tile([0.0, 1.0, 1.0], 3)
    for n, has_interval in {1: False, 2: False, 7: False, 8: True}.items():
        assert (ratio_interval(values[:n], np.ones(n)) is not None) == has_interval
        assert (mean_interval(values[:n], np.zeros(n, int)) is not None) == has_interval
    assert mean_interval(values[:8], np.repeat([0, 1], 4)) is None  # 6 degrees of freedom


def test_data_without_variation_have_no_interval():
    assert ratio_interval(np.full(9, 2.0), np.ones(9)) is None
    assert mean_interval(np.ones(9), np.zeros(9, int)) is None
    assert mean_interval(np.repeat([1.0, 0.0], [30, 70]), np.repeat([0, 1], [30, 70])) is None
