"""Intervals that contain the true value about as often as they say, and that do not depend on how they are computed."""

import numpy as np
import pytest

from train.probes import bootstrap
from train.probes.bootstrap import mean_interval, ratio_interval


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


def test_pairs_are_drawn_within_their_group():
    """Each group is all right or all wrong, so every draw has the same accuracy; drawn together they would vary."""
    values = np.repeat([1.0, 0.0], [30, 70])
    assert mean_interval(values, np.repeat([0, 1], [30, 70])) == (0.3, 0.3)
    low, high = mean_interval(values, np.zeros(100, int))
    assert 0.18 < low < 0.26 and 0.35 < high < 0.42


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


def test_data_without_variation_and_too_few_data():
    assert ratio_interval(np.full(5, 2.0), np.ones(5)) == (2.0, 2.0)
    assert mean_interval(np.ones(5), np.zeros(5, int)) == (1.0, 1.0)
    assert ratio_interval(np.ones(1), np.ones(1)) is None and mean_interval(np.ones(1), np.zeros(1, int)) is None
