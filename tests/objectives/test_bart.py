"""BART's noises: each by hand, the span law against Poisson's and against the reference's procedure, one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.bart import VARIANTS
from contract.errors import ConfigError
from objectives import BART
from objectives.algebra.infilling import cover, covered_share, insert, poisson_law, span_lengths
from objectives.algebra.sequences import Sequences
from tests.objectives.helpers import sequence, vocab

VOCAB = vocab()
MASK, EOS = VOCAB.mask, VOCAB.eos
VARIANT = {name: BART(**fields) for name, fields in VARIANTS.items()}


def some_keys(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def variant(name: str, **fields) -> BART:
    return BART(**(VARIANTS[name] | fields))


def corrupt(objective: BART, tokens, n: int = 1):
    tokens = np.tile(np.asarray(tokens, np.int32), (n, 1))
    return objective.corrupt(tokens, np.full(n, tokens.shape[1]), some_keys(n), VOCAB)


# Text infilling


def infilled(monkeypatch, replace_length, spans, starts, empty=0, inserted_at=()):
    """Tokens 10..17 with spans of the given lengths at the given starts, and empty spans at places of the result."""
    spans = Sequences(np.asarray([spans], np.int32), np.asarray([len(spans)]))
    monkeypatch.setattr("objectives.bart.span_lengths", lambda *_: (spans, np.asarray([empty])))
    monkeypatch.setattr("objectives.algebra.infilling.rng.draw", lambda *_: np.asarray([starts]))
    places = lambda keys, valid, counts: np.isin(np.arange(valid.shape[1]), inserted_at)[None]  # noqa: E731
    monkeypatch.setattr("objectives.algebra.infilling.rng.choose_mask", places)
    made = corrupt(variant("text_infilling", replace_length=replace_length, mask_random=0.0), range(10, 18))
    assert sequence(made.targets) == [*range(10, 18), EOS]
    return sequence(made.inputs)


def test_spans_become_one_mask_each(monkeypatch):
    assert infilled(monkeypatch, 1, [1, 3], [6, 1]) == [10, MASK, 14, 15, MASK, 17, EOS]


def test_spans_that_touch_stay_two_and_spans_that_overlap_are_one(monkeypatch):
    assert infilled(monkeypatch, 1, [2, 2], [2, 4]) == [10, 11, MASK, MASK, 16, 17, EOS]
    assert infilled(monkeypatch, 1, [3, 1], [2, 4]) == [10, 11, MASK, 15, 16, 17, EOS]
    assert infilled(monkeypatch, 1, [2, 3], [2, 3]) == [10, 11, MASK, 16, 17, EOS]


def test_a_span_is_cut_at_the_end_of_the_text(monkeypatch):
    assert infilled(monkeypatch, 1, [5], [6]) == [10, 11, 12, 13, 14, 15, MASK, EOS]


def test_replace_length_0_deletes_spans(monkeypatch):
    assert infilled(monkeypatch, 0, [1, 3], [6, 1]) == [10, 14, 15, 17, EOS]


def test_empty_spans_are_masks_put_in(monkeypatch):
    assert infilled(monkeypatch, 1, [3], [1], 2, [0, 4]) == [MASK, 10, MASK, 14, MASK, 15, 16, 17, EOS]


def test_never_more_masks_are_put_in_than_tokens_taken_out(monkeypatch):
    """So inputs are no longer than the text, and rows can be planned. Two of these three masks have no room."""
    assert infilled(monkeypatch, 1, [2], [1], 3, [8 - 1]) == [10, MASK, 13, 14, 15, 16, 17, MASK, EOS]
    assert infilled(monkeypatch, 1, [1], [7], 2) == [10, 11, 12, 13, 14, 15, 16, MASK, EOS]


def test_poisson_law():
    law = poisson_law(3.0)
    pmf = [math.exp(-3) * 3**k / math.factorial(k) for k in range(40)]
    assert len(law) == next(k for k in range(40) if pmf[k] < 1e-7) + 1  # the first so rare is the last kept
    np.testing.assert_allclose(np.diff(law, prepend=0), pmf[: len(law)], atol=1e-7)
    assert law[-1] == pytest.approx(1)


def test_long_spans_are_drawn_too():
    """fairseq's table ends at the first length rarer than 1e-7. For means above 16 that is 0, and only 0 is drawn."""
    law = np.diff(poisson_law(20.0), prepend=0)
    assert law @ np.arange(len(law)) == pytest.approx(20, abs=1e-4)


def test_span_lengths_follow_poissons_law_up_to_the_one_that_is_cut():
    n, budget, rate = 4000, 60, 3.0
    spans, empty = span_lengths(some_keys(n), np.full(n, budget), rate)
    assert (np.where(np.arange(spans.tokens.shape[1]) < spans.lengths[:, None], spans.tokens, 0).sum(1) == budget).all()
    # The first three lengths above zero are drawn far from the cut: Poisson given that it is not 0.
    first = spans.tokens[:, :3].ravel()
    pmf = np.exp(-rate) * rate ** np.arange(30) / np.asarray([math.factorial(k) for k in range(30)], float)
    pmf[0] = 0
    pmf /= pmf.sum()
    shares = np.bincount(first, minlength=30)[:30] / len(first)
    assert (np.abs(shares - pmf) < 4.5 * np.sqrt(pmf / len(first)) + 1e-6).all()
    # Empty spans come between: e^-3 of all that are drawn.
    assert empty.sum() / (empty.sum() + spans.lengths.sum()) == pytest.approx(math.exp(-rate), rel=0.06)


def reference_spans(generator, budget, rate):
    """fairseq's procedure for one example, with numpy's Poisson: lengths above zero, and the number of zeros."""
    lengths = []
    while sum(lengths) < budget:
        lengths.append(int(generator.poisson(rate)))
    lengths[-1] -= sum(lengths) - budget
    return [length for length in lengths if length], lengths.count(0)


def reference_infill(generator, length, spans):
    """Masks and tokens that stay, after fairseq's loop over tokens."""
    starts = generator.permutation(length)[: len(spans)]
    keep, mask = np.ones(length, bool), np.zeros(length, bool)
    mask[starts] = True
    for start, span in zip(starts, spans, strict=True):
        keep[start + 1 : start + span] = False
    return int((mask & keep).sum()), int((keep & ~mask).sum())


@pytest.mark.parametrize(("length", "rate"), [(100, 3.0), (100, 3.5), (7, 3.0), (200, 12.0)])
def test_infilling_is_the_references_on_average(length, rate):
    """Spans, empty spans, masks and tokens that stay, against 3000 texts done one by one."""
    generator, n, budget = np.random.default_rng(1), 6000, math.ceil(0.3 * length)
    reference = []
    for _ in range(n // 2):
        spans, zeros = reference_spans(generator, budget, rate)
        reference.append((len(spans), zeros, *reference_infill(generator, length, spans)))
    spans, empty = span_lengths(some_keys(n), np.full(n, budget), rate)
    heads, tails = cover(some_keys(n, 1), spans, np.full(n, length), length)
    ours = np.stack([spans.lengths, empty, heads.sum(axis=1), (~heads & ~tails).sum(axis=1)], axis=1)
    error = 4.5 * np.std(reference, axis=0) * np.sqrt(1 / len(reference) + 1 / n)
    assert (np.abs(ours.mean(axis=0) - np.mean(reference, axis=0)) <= error).all()
    np.testing.assert_allclose(ours.std(axis=0), np.std(reference, axis=0), rtol=0.08)


def test_the_covered_share_is_what_is_covered():
    n, length = 300, 1000
    for budget, rate in ((0.3, 3.0), (0.5, 3.5), (0.15, 10.0)):
        spans, _ = span_lengths(some_keys(n), np.full(n, round(budget * length)), rate)
        heads, tails = cover(some_keys(n, 1), spans, np.full(n, length), length)
        assert (heads | tails).mean() == pytest.approx(covered_share(budget, rate), rel=0.02)
    assert covered_share(0.3, 3.0) == pytest.approx(0.267, abs=0.001)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=5), st.integers(0, 2**32))
def test_insert_keeps_the_order_of_both(sizes, seed):
    lengths, counts = np.asarray(sizes).T
    text = np.arange(10, 10 + max(lengths.max(), 1), dtype=np.int32)
    put_in = np.arange(100, 100 + max(counts.max(), 1), dtype=np.int32)
    n = len(sizes)
    made = insert(some_keys(n, seed), Sequences(np.tile(text, (n, 1)), lengths), np.tile(put_in, (n, 1)), counts)
    for e in range(n):
        both = sequence(made, e)
        assert [t for t in both if t < 100] == text[: lengths[e]].tolist()
        assert [t for t in both if t >= 100] == put_in[: counts[e]].tolist()


def test_masks_are_put_in_anywhere_alike():
    made = insert(some_keys(5000), Sequences(np.full((5000, 4), 7, np.int32), np.full(5000, 4)),
                  np.full((5000, 1), MASK, np.int32), np.ones(5000, int))  # fmt: skip
    assert np.abs((made.tokens == MASK).mean(axis=0) - 0.2).max() < 0.03


# The other noises


def test_token_masking_and_deletion_take_three_tokens_in_ten():
    text = np.arange(10, 70)
    masked = corrupt(VARIANT["token_masking"], text, 200).inputs.tokens[:, :60]
    changed = masked != text
    assert (changed.sum(axis=1) == 18).mean() > 0.98  # a random token may be the token that was there
    assert (masked[changed] == MASK).mean() == pytest.approx(0.9, abs=0.025)
    deleted = corrupt(VARIANT["token_deletion"], text, 200)
    assert (deleted.inputs.lengths == 42 + 1).all()
    for e in range(200):
        kept = sequence(deleted.inputs, e)[:-1]
        assert kept == sorted(set(kept)) and set(kept) <= set(text.tolist())


def test_the_number_of_masks_is_rounded_up():
    # In fairseq's float32 .3 * 50 is 15.000001, and so is it here.
    for length, masked in ((1, 1), (3, 1), (4, 2), (10, 3), (11, 4), (50, 16)):
        made = corrupt(variant("token_masking", mask_random=0.0), range(10, 10 + length))
        assert sequence(made.inputs).count(MASK) == masked


def test_sentence_permutation_of_real_lines_does_something():
    """fairseq's once did nothing at all (issue 2692)."""
    text = (
        np.frombuffer(b"def f(x):\n    return x + 1\n\nprint(f(2)). And so on. Yes!\n", np.uint8).astype(np.int32) + 3
    )
    made = corrupt(VARIANT["sentence_permutation"], text, 200)
    inputs, targets = made.inputs.tokens[:, :-1], made.targets.tokens[:, :-1]
    assert (targets == text).all()
    assert (np.sort(inputs, axis=1) == np.sort(text)).all()
    assert (inputs != targets).any(axis=1).mean() > 0.95  # of 120 orders one is the old one


def test_rotation_begins_at_every_token_alike():
    made = corrupt(VARIANT["document_rotation"], range(10, 15), 5000)
    first = made.inputs.tokens[:, 0] - 10
    for e in range(50):
        assert sequence(made.inputs, e) == [10 + (first[e] + i) % 5 for i in range(5)] + [EOS]
    assert (np.abs(np.bincount(first, minlength=5) - 1000) < 130).all()
    half = corrupt(variant("document_rotation", rotate=0.5), range(10, 15), 5000)
    assert (half.inputs.tokens[:, 0] == 10).mean() == pytest.approx(0.5 + 0.5 / 5, abs=0.03)


def test_all_noises_together_by_hand(monkeypatch):
    """Sentences "ab." and " cd" swap to " cdab."; "da" becomes a mask; the text is rotated to begin at "b"."""
    text = np.frombuffer(b"ab. cd", np.uint8).astype(np.int32) + 3
    a, b, stop, space, c, _ = text.tolist()
    one_span = Sequences(np.asarray([[2]], np.int32), np.asarray([1])), np.asarray([0])
    draws = iter([np.asarray([[1, 0]]), np.asarray([[2]])])  # the sentences' order, then the span's start
    monkeypatch.setattr("objectives.bart.span_lengths", lambda *_: one_span)
    monkeypatch.setattr("contract.rng.draw", lambda *_: next(draws))
    monkeypatch.setattr("objectives.bart.rng.integers", lambda *_: np.asarray([3]))
    made = corrupt(variant("bart", rotate=1.0, mask_random=0.0), text)
    assert sequence(made.inputs) == [b, stop, space, c, MASK, EOS]
    assert sequence(made.targets) == [*text.tolist(), EOS] and a not in sequence(made.inputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_rate": 1.2}, r"objective.mask_rate=1.2 must lie between 0 and 1"),
        ({"rotate": -0.1}, r"objective.rotate=-0.1 must lie between 0 and 1"),
        ({"mask_rate": 0.0, "permute_sentences": 0.0}, r"objective.mask_rate and objective.rotate are all 0"),
        ({"poisson_lambda": 0.0}, r"objective.poisson_lambda=0.0 must be above 0"),
    ],
)
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ConfigError, match=message):
        variant("bart", **fields).check("objective")


def test_short_spans_draw_a_warning():
    assert VARIANT["bart"].check("objective") == []
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
def test_any_noise_of_any_text_fits_its_row(lengths, fields, seed):
    """Whatever the fields: mostly empty spans, spans longer than the text, everything masked, everything deleted."""
    objective, lengths = variant("bart", **fields), np.asarray(lengths)
    tokens = np.random.default_rng(seed).integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    made = objective.corrupt(tokens, lengths, some_keys(len(lengths), seed), VOCAB)
    assert (made.inputs.lengths >= 1).all() and (made.inputs.lengths <= lengths + 1).all()
    for e, length in enumerate(lengths):
        inputs = sequence(made.inputs, e)
        assert inputs[-1] == EOS and EOS not in inputs[:-1]
        assert sequence(made.targets, e) == [*tokens[e, :length].tolist(), EOS]
