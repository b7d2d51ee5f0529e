"""BART's noise functions: each on small texts, and span lengths against Poisson's law and fairseq's procedure."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.bart import VARIANTS
from contract.errors import ConfigError
from objectives import BART
from objectives.algebra.infilling import cover, insert, poisson_cdf, span_lengths
from objectives.algebra.sequences import Sequences
from tests.objectives.helpers import byte_ids, random_keys, sequence, vocab

VOCAB = vocab()
MASK, EOS = VOCAB.mask, VOCAB.eos
BARTS = {name: BART(**fields) for name, fields in VARIANTS.items()}


def variant(name: str, **fields) -> BART:
    return BART(**(VARIANTS[name] | fields))


def corrupt(objective: BART, tokens, n: int = 1):
    tokens = np.tile(np.asarray(tokens, np.int32), (n, 1))
    return objective.corrupt(tokens, np.full(n, tokens.shape[1]), random_keys(n), VOCAB)


# Text infilling


def infilled(monkeypatch, replace_length, spans, starts, empty=0, inserted_at=()):
    """The inputs of tokens 10..17 with spans of given lengths at given starts, and `empty` spans.

    inserted_at: the positions, in the result, of the masks of empty spans.
    """
    spans = Sequences(np.asarray([spans], np.int32), np.asarray([len(spans)]))
    monkeypatch.setattr("objectives.bart.span_lengths", lambda *_: (spans, np.asarray([empty])))
    monkeypatch.setattr("objectives.algebra.infilling.rng.draw", lambda *_: np.asarray([starts]))
    places = lambda keys, valid, counts: np.isin(np.arange(valid.shape[1]), inserted_at)[None]  # noqa: E731
    monkeypatch.setattr("objectives.algebra.infilling.rng.choose_mask", places)
    examples = corrupt(variant("text_infilling", replace_length=replace_length, mask_random=0.0), range(10, 18))
    assert sequence(examples.targets) == [*range(10, 18), EOS]
    return sequence(examples.inputs)


@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        ((1, [1, 3], [6, 1]), [10, MASK, 14, 15, MASK, 17, EOS]),  # each span becomes one mask
        ((1, [2, 2], [2, 4]), [10, 11, MASK, MASK, 16, 17, EOS]),  # adjacent spans have a mask each
        ((1, [3, 1], [2, 4]), [10, 11, MASK, 15, 16, 17, EOS]),  # overlapping spans share one
        ((1, [2, 3], [2, 3]), [10, 11, MASK, 16, 17, EOS]),
        ((1, [5], [6]), [10, 11, 12, 13, 14, 15, MASK, EOS]),  # cut at the end of the text
        ((0, [1, 3], [6, 1]), [10, 14, 15, 17, EOS]),  # replace_length=0 deletes spans
        ((1, [3], [1], 2, [0, 4]), [MASK, 10, MASK, 14, MASK, 15, 16, 17, EOS]),  # empty spans are inserted masks
        # No more masks are inserted than tokens are removed, so inputs are never longer than the text: two of three
        # empty spans are omitted, and both of two.
        ((1, [2], [1], 3, [8 - 1]), [10, MASK, 13, 14, 15, 16, 17, MASK, EOS]),
        ((1, [1], [7], 2), [10, 11, 12, 13, 14, 15, 16, MASK, EOS]),
    ],
)
def test_spans_become_masks(arguments, inputs, monkeypatch):
    assert infilled(monkeypatch, *arguments) == inputs


def test_poisson_cdf_is_the_cumulative_distribution_up_to_probabilities_of_1e_7():
    law = poisson_cdf(3.0)
    pmf = [math.exp(-3) * 3**k / math.factorial(k) for k in range(40)]
    assert len(law) == next(k for k in range(40) if pmf[k] < 1e-7) + 1  # ends with the first length rarer than 1e-7
    np.testing.assert_allclose(np.diff(law, prepend=0), pmf[: len(law)], atol=1e-7)
    assert law[-1] == pytest.approx(1)


def test_the_poisson_cdf_of_a_large_mean_is_complete():
    """fairseq's table ends at the first length rarer than 1e-7, which is length 0 for means above 16."""
    law = np.diff(poisson_cdf(20.0), prepend=0)
    assert law @ np.arange(len(law)) == pytest.approx(20, abs=1e-4)


def reference_spans(generator, budget, rate):
    """fairseq's procedure for one example, with NumPy's Poisson draws: lengths above 0, and the number of zeros."""
    lengths = []
    while sum(lengths) < budget:
        lengths.append(int(generator.poisson(rate)))
    lengths[-1] -= sum(lengths) - budget
    return [length for length in lengths if length], lengths.count(0)


def reference_infill(generator, length, spans):
    """The numbers of masks and of remaining tokens after fairseq's loop over tokens."""
    starts = generator.permutation(length)[: len(spans)]
    keep, mask = np.ones(length, bool), np.zeros(length, bool)
    mask[starts] = True
    for start, span in zip(starts, spans, strict=True):
        keep[start + 1 : start + span] = False
    return int((mask & keep).sum()), int((keep & ~mask).sum())


@pytest.mark.parametrize(("length", "rate"), [(100, 3.0), (100, 3.5), (7, 3.0), (200, 12.0)])
def test_infilling_agrees_with_fairseqs_procedure_on_average(length, rate):
    """The numbers of spans, empty spans, masks and remaining tokens, against 3000 texts."""
    generator, n, budget = np.random.default_rng(1), 6000, math.ceil(0.3 * length)
    reference = []
    for _ in range(n // 2):
        spans, zeros = reference_spans(generator, budget, rate)
        reference.append((len(spans), zeros, *reference_infill(generator, length, spans)))
    spans, empty = span_lengths(random_keys(n), np.full(n, budget), rate)
    heads, tails = cover(random_keys(n, 1), spans, np.full(n, length), length)
    measured = np.stack([spans.lengths, empty, heads.sum(axis=1), (~heads & ~tails).sum(axis=1)], axis=1)
    error = 4.5 * np.std(reference, axis=0) * np.sqrt(1 / len(reference) + 1 / n)
    assert (np.abs(measured.mean(axis=0) - np.mean(reference, axis=0)) <= error).all()
    np.testing.assert_allclose(measured.std(axis=0), np.std(reference, axis=0), rtol=0.08)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=5), st.integers(0, 2**32))
def test_insert_keeps_the_order_of_the_text_and_of_the_inserted_tokens(sizes, seed):
    lengths, counts = np.asarray(sizes).T
    text = np.arange(10, 10 + max(lengths.max(), 1), dtype=np.int32)
    inserted = np.arange(100, 100 + max(counts.max(), 1), dtype=np.int32)
    n = len(sizes)
    result = insert(random_keys(n, seed), Sequences(np.tile(text, (n, 1)), lengths), np.tile(inserted, (n, 1)), counts)
    for e in range(n):
        tokens = sequence(result, e)
        assert [t for t in tokens if t < 100] == text[: lengths[e]].tolist()
        assert [t for t in tokens if t >= 100] == inserted[: counts[e]].tolist()


def test_tokens_are_inserted_at_every_position_equally_often():
    result = insert(random_keys(5000), Sequences(np.full((5000, 4), 7, np.int32), np.full(5000, 4)),
                  np.full((5000, 1), MASK, np.int32), np.ones(5000, int))  # fmt: skip
    assert np.abs((result.tokens == MASK).mean(axis=0) - 0.2).max() < 0.03


# The other noise functions


def test_token_masking_and_deletion_hide_three_tokens_in_ten():
    text = np.arange(10, 70)
    masked = corrupt(BARTS["token_masking"], text, 200).inputs.tokens[:, :60]
    changed = masked != text
    assert (changed.sum(axis=1) == 18).mean() > 0.98  # a random token may equal the token that it replaces
    assert (masked[changed] == MASK).mean() == pytest.approx(0.9, abs=0.025)
    deleted = corrupt(BARTS["token_deletion"], text, 200)
    assert (deleted.inputs.lengths == 42 + 1).all()
    for e in range(200):
        kept = sequence(deleted.inputs, e)[:-1]
        assert kept == sorted(set(kept)) and set(kept) <= set(text.tolist())


def test_random_tokens_in_place_of_masks_differ_and_are_all_ordinary_tokens():
    masks = variant("token_masking", mask_random=1.0)._masks(random_keys(2000), 4, VOCAB)
    assert np.unique(masks).tolist() == list(range(VOCAB.content_start, VOCAB.content_end))
    assert (masks[:, 1:] == masks[:, :1]).mean() < 0.01


def test_the_number_of_masks_is_rounded_up():
    # float32, as in fairseq: 0.3 * 50 is 15.000001.
    for length, masked in ((1, 1), (3, 1), (4, 2), (10, 3), (11, 4), (50, 16)):
        examples = corrupt(variant("token_masking", mask_random=0.0), range(10, 10 + length))
        assert sequence(examples.inputs).count(MASK) == masked


def test_rotation_begins_at_every_token_equally_often():
    examples = corrupt(BARTS["document_rotation"], range(10, 15), 5000)
    first = examples.inputs.tokens[:, 0] - 10
    for e in range(50):
        assert sequence(examples.inputs, e) == [10 + (first[e] + i) % 5 for i in range(5)] + [EOS]
    assert (np.abs(np.bincount(first, minlength=5) - 1000) < 130).all()
    half = corrupt(variant("document_rotation", rotate=0.5), range(10, 15), 5000)
    assert (half.inputs.tokens[:, 0] == 10).mean() == pytest.approx(0.5 + 0.5 / 5, abs=0.03)


def test_permutation_infilling_and_rotation_are_applied_in_this_order(monkeypatch):
    """Sentences "ab." and " cd" swap to " cdab."; "da" becomes a mask; the text is rotated to begin at "b"."""
    text = byte_ids("ab. cd")
    a, b, stop, space, c, _ = text.tolist()
    one_span = Sequences(np.asarray([[2]], np.int32), np.asarray([1])), np.asarray([0])
    draws = iter([np.asarray([[1, 0]]), np.asarray([[2]])])  # the sentences' order, then the span's start
    monkeypatch.setattr("objectives.bart.span_lengths", lambda *_: one_span)
    monkeypatch.setattr("contract.rng.draw", lambda *_: next(draws))
    monkeypatch.setattr("objectives.bart.rng.integers", lambda *_: np.asarray([3]))
    examples = corrupt(variant("bart", rotate=1.0, mask_random=0.0), text)
    assert sequence(examples.inputs) == [b, stop, space, c, MASK, EOS]
    assert sequence(examples.targets) == [*text.tolist(), EOS] and a not in sequence(examples.inputs)


def test_no_noise_is_refused_and_a_small_poisson_mean_gives_a_warning():
    with pytest.raises(ConfigError, match=r"objective.mask_rate and objective.rotate are all 0"):
        variant("bart", mask_rate=0.0, permute_sentences=0.0).check("objective")
    assert BARTS["bart"].check("objective") == []
    (warning,) = variant("bart", poisson_lambda=1.0).check("objective")
    assert "objective.poisson_lambda=1.0" in warning


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    fields=st.fixed_dictionaries(
        {
            "permute_sentences": st.floats(0, 1),
            "mask_rate": st.floats(0, 1),
            "mask_length": st.sampled_from(["span_poisson", "token"]),
            "poisson_lambda": st.floats(0.2, 30),
            "replace_length": st.sampled_from([0, 1]),
            "rotate": st.floats(0, 1),
        }
    ),
    seed=st.integers(0, 2**32),
)
def test_inputs_of_any_noise_are_no_longer_than_the_text_and_an_eos(lengths, fields, seed):
    """Includes mostly empty spans, spans longer than the text, and texts masked or deleted as a whole."""
    objective, lengths = variant("bart", **fields), np.asarray(lengths)
    tokens = np.random.default_rng(seed).integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    examples = objective.corrupt(tokens, lengths, random_keys(len(lengths), seed), VOCAB)
    assert (examples.inputs.lengths >= 1).all() and (examples.inputs.lengths <= lengths + 1).all()
    for e, length in enumerate(lengths):
        inputs = sequence(examples.inputs, e)
        assert inputs[-1] == EOS and EOS not in inputs[:-1]
        assert sequence(examples.targets, e) == [*tokens[e, :length].tolist(), EOS]


@pytest.mark.parametrize(
    ("fields", "known"), [({}, True), ({"rotate": 0.5}, False), ({"rotate": 0.5, "replace_length": 0}, True)]
)
def test_the_share_of_corrupted_tokens_is_not_known_where_masked_texts_are_reordered(fields, known):
    """A token that was moved is not at its place, whether or not it is masked; without masks tokens are counted."""
    objective = variant("token_masking", **fields)
    assert objective.expected() == ({"corrupted": 0.3} if known else {})
