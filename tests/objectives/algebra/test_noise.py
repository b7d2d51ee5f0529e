"""Noise masks: counts of noise tokens and spans, and the distribution of span lengths against T5's own function."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.algebra.noise import (
    compositions,
    count_by_row,
    random_spans_noise_mask,
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


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    density=st.floats(0.01, 0.99),
    mean=st.floats(1, 80),
    roll=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_mask_has_the_tokens_and_spans_of_span_counts(lengths, density, mean, roll, seed):
    lengths = np.asarray(lengths)
    mask = random_spans_noise_mask(random_keys(len(lengths), seed), lengths, int(lengths.max()), noise_density=density,
                                   mean_noise_span_length=mean, random_roll=roll)  # fmt: skip
    noise, spans = span_counts(lengths, density, mean)
    found = span_starts(mask).sum(axis=1)
    for e, length in enumerate(lengths):
        assert not mask[e, length:].any()
        if length == 1:
            assert not mask[e].any()
            continue
        assert mask[e].sum() == noise[e]
        if roll:
            assert spans[e] <= found[e] <= spans[e] + 1
        else:
            assert found[e] == spans[e]
            assert not mask[e, 0] and mask[e, length - 1]


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


def test_rolled_masks_have_noise_at_every_position_equally_often():
    n, length = 8000, 20
    rolled = {}
    for roll in (False, True):
        mask = random_spans_noise_mask(random_keys(n), np.full(n, length), length, noise_density=0.25,
                                       mean_noise_span_length=5.0, random_roll=roll)  # fmt: skip
        rolled[roll] = mask.mean(axis=0)
    assert rolled[False][0] == 0 and rolled[False][-1] == 1
    assert np.abs(rolled[True] - 0.25).max() < 0.025


def test_a_mask_does_not_depend_on_the_other_masks_of_a_batch():
    lengths = np.asarray([30, 12, 45])
    together = random_spans_noise_mask(random_keys(3), lengths, 45, noise_density=0.3, mean_noise_span_length=3.0)
    alone = random_spans_noise_mask(
        random_keys(3)[1:2], lengths[1:2], 12, noise_density=0.3, mean_noise_span_length=3.0
    )
    np.testing.assert_array_equal(together[1, :12], alone[0])
