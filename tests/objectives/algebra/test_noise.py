"""Noise masks: counts of noise tokens and spans, and the distribution of span lengths against T5's own function."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.algebra.noise import (
    Distribution,
    compositions,
    count_by_row,
    most_spans,
    probabilities,
    random_spans_noise_mask,
    span_bounds,
    span_counts,
    valid_positions,
)
from objectives.algebra.sequences import span_starts
from tests.objectives.helpers import REFERENCE, random_keys


@pytest.mark.parametrize(
    ("length", "density", "mean", "expected"),
    [
        (568, 0.15, 3.0, (85, 28)),
        (766, 0.5, 3.0, (383, 128)),
        (1006, 0.5, 64.0, (503, 8)),
        (600, 0.15, 64.0, (90, 1)),
        (190, 0.15, 3.0, (29, 10)),  # 28.500002 in float32, as in T5; float64 would give 28
        (1, 0.15, 3.0, (1, 1)),  # the counts of length 2
        (10, 0.9, 1.0, (9, 1)),  # clamped; T5 fails here, as it divides 1 token into 9 spans
    ],
)
def test_span_counts_are_those_of_t5(length, density, mean, expected):
    noise, spans = span_counts(np.asarray([length]), density, mean)
    assert (noise[0], spans[0]) == expected


@pytest.mark.parametrize("width", [1, 5, 2**15 - 1, 2**15, 2**16 + 1])
def test_valid_positions_and_their_counts_in_rows_of_every_width(width):
    lengths = np.array([0, 1, width // 2, width - 1, width, 0, width])
    mask = valid_positions(lengths, width)
    assert mask.shape == (7, width) and (mask.sum(axis=1) == lengths).all()
    assert (mask == np.sort(mask, axis=1)[:, ::-1]).all()  # True first
    assert (count_by_row(np.flatnonzero(mask), mask.shape) == lengths).all()


def test_compositions_are_uniform():
    # 4 into 2 parts: 1+3, 2+2, 3+1.
    parts = np.diff(compositions(random_keys(3000), np.full(3000, 4), np.full(3000, 2)), axis=1, prepend=0)
    assert (parts.sum(axis=1) == 4).all()
    assert (np.abs(np.bincount(parts[:, 0], minlength=4)[1:] - 1000) < 120).all()


@pytest.mark.parametrize("law", REFERENCE["span_law"], ids=lambda law: f"{law['length']}-{law['density']}")
def test_span_lengths_are_distributed_as_in_t5(law):
    """Mean, standard deviation and the shares of spans of 1 and 2 tokens, against 400 masks of T5's own function."""
    n, length = 2000, law["length"]
    mask = random_spans_noise_mask(random_keys(n), np.full(n, length), length, noise_density=law["density"],
                                   mean_noise_span_length=law["mean_span"])  # fmt: skip
    starts = np.flatnonzero(span_starts(mask).ravel())
    run_lengths = np.bincount(np.cumsum(span_starts(mask).ravel())[mask.ravel()] - 1, minlength=len(starts))
    spans = law["spans"] * n
    assert len(run_lengths) == spans and run_lengths.sum() == law["noise_tokens"] * n
    assert run_lengths.mean() == pytest.approx(law["span_length_mean"])
    reference_error = 4 / np.sqrt(law["spans"] * law["masks"])
    assert run_lengths.std() == pytest.approx(law["span_length_sd"], rel=0.5 * reference_error + 0.02)
    for k in (1, 2):
        assert (run_lengths == k).mean() == pytest.approx(law[f"p_length_{k}"], abs=0.5 * reference_error + 0.005)


# Other distributions of the span lengths

DISTRIBUTIONS = get_args(Distribution)
UL2 = {"r1": (0.15, 3.0, 568), "r2": (0.15, 8.0, 588), "x1": (0.5, 3.0, 766), "x4": (0.5, 64.0, 1006)}


def masks(distribution, density, mean, lengths, *, roll=False, seed=0):
    lengths = np.asarray(lengths)
    options = dict(noise_density=density, mean_noise_span_length=mean, random_roll=roll, distribution=distribution)
    return random_spans_noise_mask(random_keys(len(lengths), seed), lengths, int(lengths.max()), **options)


def spans_of(mask):
    """The span lengths of each mask, a list of arrays."""
    starts = span_starts(mask)
    lengths = np.bincount(np.cumsum(starts.ravel())[mask.ravel()] - 1)
    return np.split(lengths, np.cumsum(starts.sum(axis=1))[:-1])


def test_a_roll_makes_every_position_equally_likely_to_be_noise():
    # One noise token of four.
    counts = masks("composition", 0.25, 1.0, [4] * 4000, roll=True).sum(axis=0)
    assert counts.sum() == 4000 and np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_a_roll_does_not_follow_from_the_spans_that_it_rotates():
    plain, rolled = (masks("composition", 0.5, 4.0, [32] * 4000, roll=roll) for roll in (False, True))
    offsets = np.argmax([(np.roll(plain, offset, axis=1) == rolled).all(axis=1) for offset in range(32)], axis=0)
    first = np.stack(spans_of(plain))[:, 0]
    assert abs(np.corrcoef(offsets, first)[0, 1]) < 4 / np.sqrt(4000)


def test_spans_and_the_gaps_before_them_have_independent_lengths():
    mask = masks("composition", 0.5, 4.0, [32] * 4000)
    spans, gaps = (np.stack(spans_of(tokens)) for tokens in (mask, ~mask))
    assert spans.shape == gaps.shape == (4000, 4)  # of 16 tokens each
    for k in range(4):
        assert abs(np.corrcoef(spans[:, k], gaps[:, k])[0, 1]) < 4 / np.sqrt(4000)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("mean", [1.0, 1.2, 2.0, 2.5, 3.0, 3.8, 8.0, 64.0])
def test_probabilities_sum_to_1_and_have_the_mean(distribution, mean):
    shares = probabilities(distribution, mean)
    assert shares.sum() == pytest.approx(1) and (shares >= 0).all() and shares[-1] > 0
    assert shares @ np.arange(1, len(shares) + 1) == pytest.approx(mean, rel=1e-4)


def test_probabilities_by_hand():
    np.testing.assert_allclose(probabilities("fixed", 3.0), [0, 0, 1])
    np.testing.assert_allclose(probabilities("fixed", 2.25), [0, 0.75, 0.25])
    np.testing.assert_allclose(probabilities("uniform", 3.0), [0.2] * 5)
    np.testing.assert_allclose(probabilities("uniform", 2.5), [0.25] * 4)
    np.testing.assert_allclose(probabilities("geometric", 4.0)[:3], [1 / 4, 3 / 16, 9 / 64], rtol=1e-6)
    poisson = [3**k / math.factorial(k) / math.expm1(3) for k in (1, 2, 3)]  # without 0, of rate 3
    np.testing.assert_allclose(probabilities("poisson", 3 / -math.expm1(-3))[:3], poisson, rtol=1e-6)
    weights = np.exp([-2, -0.5, 0, -0.5, -2])  # one standard deviation is one token
    np.testing.assert_allclose(probabilities("normal", 3.0), weights / weights.sum())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("denoiser", UL2)
def test_masks_have_t5s_number_of_noise_tokens_and_spans_of_the_distribution(denoiser, distribution):
    """All spans but each mask's last one are draws. The first few of them end long before the last one is cut."""
    density, mean, length = UL2[denoiser]
    n = 1500
    mask = masks(distribution, density, mean, np.full(n, length))
    noise, _ = span_counts(np.asarray([length]), density, mean)
    assert (mask.sum(axis=1) == noise).all()
    shares = probabilities(distribution, mean)
    first = np.concatenate([spans[: min(4, int(noise[0] / mean / 3))] for spans in spans_of(mask)])
    assert first.mean() == pytest.approx(mean, abs=4.5 * first.std() / np.sqrt(len(first)) + 1e-9)
    found = np.bincount(first, minlength=len(shares) + 1)[1:]
    assert len(found) == len(shares)
    # In groups of neighbouring lengths, so that each group has many spans.
    groups = np.minimum((np.cumsum(shares) * 8).astype(int), 7)
    expected, found = (np.bincount(groups, weights) for weights in (shares, found / len(first)))
    assert (np.abs(found - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / len(first)) + 1e-9).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("denoiser", UL2)
def test_fewer_than_one_mask_in_10000_needs_more_spans_than_the_bound(denoiser, distribution):
    """From the distribution of the sum of `most` lengths, convolved exactly."""
    _, mean, _ = UL2[denoiser]
    shares = np.concatenate([[0], probabilities(distribution, mean)])
    for noise in {1, 2, 5, 20, int(mean), 90, 383}:
        most = int(most_spans(np.asarray([noise]), distribution, mean)[0])
        total = np.ones(1)
        for _ in range(most):
            total = np.convolve(total, shares)[:noise]  # sums of `noise` or more are enough tokens
        assert total.sum() < 1e-4, (noise, most)


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    density=st.floats(0.01, 0.99),
    mean=st.floats(1, 80),
    distribution=st.sampled_from(["composition", *DISTRIBUTIONS]),
    roll=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_mask_has_the_noise_tokens_of_t5_and_spans_in_its_bounds(lengths, density, mean, distribution, roll, seed):
    """T5's composition has as many spans as the bound. Also where the check of a config would refuse the density."""
    lengths = np.asarray(lengths)
    mask = masks(distribution, density, mean, lengths, roll=roll, seed=seed)
    noise, most = span_bounds(lengths, density, mean, distribution)
    np.testing.assert_array_equal(noise, span_counts(lengths, density, mean)[0])
    found = span_starts(mask).sum(axis=1)
    for e, length in enumerate(lengths):
        assert not mask[e, length:].any()
        assert mask[e].sum() == (noise[e] if length > 1 else 0)
        assert found[e] <= most[e] + roll
        if distribution == "composition" and length > 1:
            assert found[e] >= most[e] == span_counts(lengths, density, mean)[1][e]
        if length > 1 and not roll:
            assert not mask[e, 0] and mask[e, length - 1]


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(DISTRIBUTIONS), st.floats(1, 80), st.integers(1, 3000))
def test_the_bound_grows_with_the_number_of_noise_tokens(distribution, mean, noise):
    first, second = most_spans(np.asarray([noise, noise + 1]), distribution, mean)
    assert 1 <= first <= second <= noise + 1 and first <= noise
