"""Fill-in-the-middle: its two orders (PSM, SPM), the distribution of cuts, and output lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from objectives import FIM
from tests.objectives.helpers import byte_ids, collator, random_keys, sequence, vocab

VOCAB = vocab()
EOS = VOCAB.eos
PRE, SUF, MID = (int(VOCAB.sentinel(k)) for k in range(3))


def fim_targets(objective, tokens, n=1):
    """The targets of `n` examples of the same tokens."""
    tokens = np.tile(np.asarray(tokens, np.int32), (n, 1))
    examples = objective.corrupt(tokens, np.full(n, tokens.shape[1]), random_keys(n), VOCAB)
    assert (examples.inputs.lengths == 0).all()
    return examples.targets


@pytest.mark.parametrize(
    ("cuts", "psm", "spm"),
    [
        ((2, 4), [PRE, 10, 11, SUF, 14, 15, MID, 12, 13, EOS], [PRE, SUF, 14, 15, MID, 10, 11, 12, 13, EOS]),
        ((0, 4), [PRE, SUF, 14, 15, MID, 10, 11, 12, 13, EOS], [PRE, SUF, 14, 15, MID, 10, 11, 12, 13, EOS]),
        ((2, 6), [PRE, 10, 11, SUF, MID, 12, 13, 14, 15, EOS], [PRE, SUF, MID, 10, 11, 12, 13, 14, 15, EOS]),
        ((3, 3), [PRE, 10, 11, 12, SUF, 13, 14, 15, MID, EOS], [PRE, SUF, 13, 14, 15, MID, 10, 11, 12, EOS]),
    ],
)
def test_targets_are_the_parts_in_psm_or_spm_order(cuts, psm, spm, monkeypatch):
    """Of the text 10..15, with EOS at the end of a document and without EOS where the window cut the document."""
    monkeypatch.setattr("objectives.fim._cuts", lambda *_: np.asarray([cuts]))
    for text in ([*range(10, 16), EOS], [*range(10, 16)]):
        assert sequence(fim_targets(FIM(1.0, 0.0, 1), text)) == psm
        assert sequence(fim_targets(FIM(1.0, 1.0, 1), text)) == spm


def test_fim_rate_of_the_documents_are_reordered_and_spm_rate_of_these_as_spm():
    n, length = 6000, 50
    targets = fim_targets(FIM(0.5, 0.5, 1), np.arange(10, 10 + length), n)
    reordered = targets.tokens[:, 0] == PRE
    spm = reordered & (targets.tokens[:, 1] == SUF)  # also PSM with an empty prefix
    assert reordered.mean() == pytest.approx(0.5, abs=0.03)
    empty_prefix = 1 - (1 - 1 / 51) ** 2
    assert spm.mean() == pytest.approx(0.25 + 0.25 * empty_prefix, abs=0.025)
    assert (targets.lengths == np.where(reordered, length + 4, length)).all()
    assert (targets.tokens[~reordered][:, :length] == np.arange(10, 10 + length)).all()


def test_cuts_do_not_follow_from_the_draw_that_chooses_the_document():
    tokens = fim_targets(FIM(0.5, 0.0, 1), np.arange(10, 60), 6000).tokens
    tokens = tokens[tokens[:, 0] == PRE]
    prefix = (tokens == SUF).argmax(axis=1) - 1
    suffix = (tokens == MID).argmax(axis=1) - prefix - 2
    assert abs((prefix - suffix).mean()) < 4 * (prefix - suffix).std() / np.sqrt(len(tokens))  # of the same law


def test_both_cuts_are_uniform_over_the_places_between_tokens():
    """The cuts of a text of two tokens are the smaller and the greater of two independent draws from 0, 1, 2."""
    targets = fim_targets(FIM(1.0, 0.0, 1), [10, 11], 9000)
    prefix = (targets.tokens == SUF).argmax(axis=1) - 1
    middle = targets.lengths - (targets.tokens == MID).argmax(axis=1) - 2
    counts = np.bincount(prefix * 3 + middle, minlength=9)
    # (first, second): 00 01 02 11 12 22 -> (prefix, middle) 00 01 02 10 11 20
    assert (np.abs(counts - np.asarray([1, 2, 2, 1, 2, 0, 1, 0, 0]) * 1000) < 160).all()


def test_cuts_never_divide_a_utf8_character():
    text = "aé漢🙂" * 3
    targets = fim_targets(FIM(1.0, 0.5, 1), byte_ids(text), 4000)
    starts = set()
    for e in range(len(targets.lengths)):
        tokens = sequence(targets, e)
        parts = np.split(np.asarray(tokens), np.flatnonzero(np.isin(tokens, [PRE, SUF, MID])))
        decoded = [bytes((part[1:] - 3).astype(np.uint8).tolist()).decode() for part in (*parts[1:3], parts[3][:-1])]
        starts.add(text.startswith(decoded[0]) and len(decoded[0]))
    assert starts >= set(range(len(text) + 1))  # cuts occur between all characters and at both ends


def test_single_tokens_are_reordered_and_shorter_texts_than_the_minimum_are_not():
    assert sequence(fim_targets(FIM(1.0, 0.0, 1), [EOS])) == [EOS]  # a document of no text
    assert sorted(sequence(fim_targets(FIM(1.0, 1.0, 1), [10]))) == sorted([PRE, SUF, MID, 10, EOS])
    assert sequence(fim_targets(FIM(1.0, 0.0, 2), [10, EOS])) == [10, EOS]  # shorter than two tokens of text


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_pieces_of_a_window_fit_its_output_lengths(data):
    min_document_length = data.draw(st.integers(1, 9))
    pieces = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    objective, lengths = FIM(1.0, 0.5, min_document_length), np.asarray(pieces)
    tokens = np.full((len(pieces), lengths.max()), 7, np.int32)
    tokens[np.arange(len(pieces)), lengths - 1] = EOS  # every document but the last, which the window cuts, has an EOS
    tokens[-1, lengths[-1] - 1] = 7
    examples = objective.corrupt(tokens, lengths, random_keys(len(pieces)), VOCAB)
    assert examples.targets.lengths.sum() <= objective.output_lengths(np.asarray([lengths.sum()])).targets[0]


def test_a_length_that_no_document_has_is_refused():
    """A share of 0 reorders nothing at any length."""
    with pytest.raises(
        ConfigError, match=r"objective.min_document_length=5000 is more than the \d+ tokens of a window"
    ):
        collator(FIM(0.5, 0.5, 5000), "decoder_only", documents="pack")
    collator(FIM(0.0, 0.5, 5000), "decoder_only", documents="pack")


def test_too_few_sentinels_and_joined_documents_raise():
    with pytest.raises(ConfigError, match=r"data.num_sentinels=2 is too few .* set data.num_sentinels=3 or more"):
        collator(FIM(0.5, 0.5, 8), "decoder_only", documents="pack", sentinels=2)
    with pytest.raises(ConfigError, match=r"data.documents='join' does not go with objective \(FIM\)"):
        collator(FIM(0.5, 0.5, 8), "decoder_only", documents="join")
