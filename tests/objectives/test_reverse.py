"""Reverse training: literal texts, words that are never split, and reversal twice."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.vocab import PUNCTUATION, SPACE
from objectives import Reverse
from objectives.reverse import reversed_places, unit_starts
from tests.objectives.helpers import byte_ids, random_keys, sequence, vocab

VOCAB = vocab()
EOS = VOCAB.eos
ALL = Reverse(reverse_share=1.0, unit="word", max_segment_length=3)


def reversed_text(unit, text, key=0):
    """The targets of a document of bytes as text. "|" becomes EOS."""
    ids = byte_ids(text)
    tokens = np.where(ids == byte_ids("|"), EOS, ids)[None].astype(np.int32)
    return targets_of(dataclasses.replace(ALL, unit=unit), tokens, key)


def targets_of(objective, tokens, key=0):
    keys = np.asarray([key], np.uint64)
    examples = objective.corrupt(tokens, np.asarray([tokens.shape[1]]), keys, VOCAB)
    assert examples.inputs.lengths.tolist() == [0]
    return "".join("|" if token == EOS else chr(token - 3) for token in sequence(examples.targets))


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("token", "abc:XYZ|", "ZYX:cba|"),  # EOS stays at the end
        ("token", "abc", "cba"),  # a piece that the window cuts has none
        ("word", "abc:XYZ|", "XYZ:abc|"),  # the gym's names
        ("word", "?abc:XYZ|", "XYZ:abc?|"),
        ("word", "abc>def>ghi|", "ghi>def>abc|"),
        ("word", "the cat, (sat) twice.|", ".twice )sat( ,cat the|"),
        ("word", "  caf e", "e caf  "),
        ("word", "abc|", "abc|"),
        ("word", "|", "|"),
    ],
)
def test_texts_reversed_by_hand(unit, text, expected):
    assert reversed_text(unit, text) == expected


def test_words_of_a_vocabulary_whose_tokens_contain_spaces():
    """The tokens _the _cat s ( sa t ) are the words _the, _cats, (sat and ): those of whole-word masking."""
    the, cat, s, bracket, sa, t, end = range(200, 207)
    marks = bytearray(VOCAB.marks)
    marks[the] = marks[cat] = SPACE
    marks[bracket] = marks[end] = PUNCTUATION
    spaced = dataclasses.replace(VOCAB, marks=bytes(marks))
    tokens = np.asarray([[the, cat, s, bracket, sa, t, end, EOS]], np.int32)
    examples = ALL.corrupt(tokens, np.asarray([8]), random_keys(1), spaced)
    assert sequence(examples.targets) == [end, bracket, sa, t, cat, s, the, EOS]
    again = ALL.corrupt(examples.targets.tokens, np.asarray([8]), random_keys(1), spaced)
    assert again.targets.tokens.tolist() == tokens.tolist()


def test_units_change_their_order_and_tokens_after_the_end_do_not():
    starts = np.asarray([[1, 0, 1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1]], bool)
    places = reversed_places(starts, np.asarray([6, 2]))
    assert places.tolist() == [[3, 4, 5, 2, 0, 1, 6], [1, 0, 2, 3, 4, 5, 6]]


TEXTS = st.text(alphabet="ab\u00e9 \n.>", min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.booleans(), st.sampled_from(["token", "word"]))
def test_reversal_twice_is_the_identity(text, has_eos, unit):
    tokens = np.asarray([[*byte_ids(text), *[EOS] * has_eos]], np.int32)
    objective, lengths = dataclasses.replace(ALL, unit=unit), np.asarray([tokens.shape[1]])
    once = objective.corrupt(tokens, lengths, random_keys(1), VOCAB).targets.tokens
    twice = objective.corrupt(once, lengths, random_keys(1), VOCAB).targets.tokens
    np.testing.assert_array_equal(twice, tokens)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_words_are_never_split(text):
    """The words of the reversed text are those of the text, in reverse."""

    def words(tokens):
        return [part.tolist() for part in np.split(tokens[0], np.flatnonzero(unit_starts(tokens, VOCAB)[0])[1:])]

    tokens = byte_ids(text)[None]
    changed = ALL.corrupt(tokens, np.asarray([tokens.shape[1]]), random_keys(1), VOCAB).targets.tokens
    assert words(changed) == words(tokens)[::-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_reversal_twice_is_the_identity_for_any_units(starts):
    starts = np.asarray([[True, *starts[1:]]])
    lengths = np.asarray([starts.shape[1]])
    mirrored = np.roll(starts, -1, axis=1)[:, ::-1]  # a unit of the reversed text starts where one of the text ended
    once = reversed_places(starts, lengths)
    assert np.sort(once).tolist() == [list(range(starts.shape[1]))]
    assert np.take_along_axis(once, reversed_places(mirrored, lengths), axis=1).tolist() == np.sort(once).tolist()


def test_segments_are_runs_of_the_text_whose_lengths_are_uniform():
    objective = dataclasses.replace(ALL, unit="segment", max_segment_length=4)
    tokens = np.broadcast_to(np.arange(3, 203, dtype=np.int32), (200, 200))
    found = objective.corrupt(tokens, np.full(200, 200), random_keys(200), VOCAB).targets.tokens
    lengths = []
    for row in found:
        segments = np.split(row, np.flatnonzero(np.diff(row) != 1) + 1)
        assert [token for segment in segments[::-1] for token in segment] == tokens[0].tolist()
        lengths += [len(segment) for segment in segments[1:]]  # the end of the text may cut the first
    shares = np.bincount(lengths, minlength=5) / len(lengths)
    np.testing.assert_allclose(shares, [0, 0.25, 0.25, 0.25, 0.25], atol=0.015)


def test_the_first_segment_does_not_follow_from_the_draw_that_chooses_the_document():
    objective = Reverse(reverse_share=0.5, unit="segment", max_segment_length=4)
    tokens = np.broadcast_to(np.arange(10, 30, dtype=np.int32), (4000, 20))
    found = objective.corrupt(tokens, np.full(4000, 20), random_keys(4000), VOCAB).targets.tokens
    found = found[found[:, 0] != 10]
    first = 20 - (found == 10).argmax(axis=1)  # tokens of the segment of the text's first token, the last of the row
    assert first.mean() == pytest.approx(2.5, abs=4 * 1.12 / np.sqrt(len(found)))


def test_the_share_of_reversed_documents():
    objective = Reverse(reverse_share=0.3, unit="token", max_segment_length=1)
    tokens = np.broadcast_to(np.arange(10, 20, dtype=np.int32), (4000, 10))
    found = objective.corrupt(tokens, np.full(4000, 10), random_keys(4000), VOCAB).targets.tokens
    is_reversed = (found == tokens[:, ::-1]).all(axis=1)
    assert (is_reversed | (found == tokens).all(axis=1)).all()
    assert is_reversed.mean() == pytest.approx(0.3, abs=0.03)
