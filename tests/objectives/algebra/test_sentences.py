"""Sentences: where they end, and their permutations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.algebra.sentences import permuted_sentences, sentence_ends
from tests.objectives.helpers import byte_ids, random_keys, vocab


def split(text: str, rule: str) -> list[str]:
    """The sentences of a text, by `sentence_ends`."""
    tokens = byte_ids(text)
    ends = sentence_ends(tokens[None], np.asarray([len(tokens)]), vocab(), rule)[0]
    return ["".join(chr(t - 3) for t in part) for part in np.split(tokens, np.flatnonzero(ends)[:-1] + 1)]


@pytest.mark.parametrize(
    ("text", "rule", "sentences"),
    [
        ("One. Two? Three! Four", "stops", ["One.", " Two?", " Three!", " Four"]),
        ("pi is 3.14, np.max is not.", "stops", ["pi is 3.14, np.max is not."]),
        ("a.\nb", "stops", ["a.", "\nb"]),
        ("a.\nb", "newlines", ["a.\n", "b"]),
        ("a.\nb", "stops_and_newlines", ["a.\n", "b"]),  # adjacent ends are one end, the last
        ("a\n\n\nb\n", "stops_and_newlines", ["a\n\n\n", "b\n"]),
        ("wait... what", "stops", ["wait...", " what"]),
        ("no end", "stops_and_newlines", ["no end"]),
        ("\n\n", "newlines", ["\n\n"]),
        (".", "stops", ["."]),
        ("x", "newlines", ["x"]),
    ],
)
def test_texts_split_into_the_expected_sentences(text, rule, sentences):
    assert split(text, rule) == sentences


def test_tokens_after_the_end_of_an_example_end_no_sentence():
    tokens = byte_ids("ab. \n\n")[None]
    ends = sentence_ends(tokens, np.asarray([3]), vocab(), "stops_and_newlines")
    assert ends.tolist() == [[False, False, True, False, False, False]]


def permute(texts: list[list[str]], share: float, seed: int = 0) -> list[str]:
    """Texts given as sentences, with their sentences permuted."""
    lengths = np.asarray([sum(map(len, sentences)) for sentences in texts])
    tokens = np.zeros((len(texts), lengths.max()), np.int32)
    ends = np.zeros(tokens.shape, bool)
    for e, sentences in enumerate(texts):
        tokens[e, : lengths[e]] = byte_ids("".join(sentences))
        ends[e, np.cumsum([len(sentence) for sentence in sentences]) - 1] = True
    order = permuted_sentences(random_keys(len(texts), seed), ends, share)
    assert (np.sort(order, axis=1) == np.arange(tokens.shape[1])).all()
    moved = np.take_along_axis(tokens, order, axis=1)
    return ["".join(chr(t - 3) for t in row[:length]) for row, length in zip(moved, lengths, strict=True)]


def test_every_order_of_sentences_is_equally_likely():
    """In particular the order changes, which it once did not in fairseq (issue 2692)."""
    orders, counts = np.unique(permute([["a", "bbb", "cc"]] * 6000, 1.0), return_counts=True)
    assert orders.tolist() == ["abbbcc", "accbbb", "bbbacc", "bbbcca", "ccabbb", "ccbbba"]
    assert (np.abs(counts - 1000) < 150).all()


def test_a_random_share_of_the_sentences_is_permuted():
    """ceil(.4 * 4) = 2 of four sentences: each pair is equally likely, and swaps with probability 1/2."""
    orders, counts = np.unique(permute([["a", "b", "c", "d"]] * 6000, 0.4), return_counts=True)
    assert set(orders) == {"abcd", "bacd", "cbad", "dbca", "acbd", "adcb", "abdc"}
    by_order = dict(zip(orders.tolist(), counts.tolist(), strict=True))
    assert by_order.pop("abcd") == pytest.approx(3000, abs=200)
    assert all(count == pytest.approx(500, abs=110) for count in by_order.values())


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.text("xyz", min_size=1, max_size=5), min_size=1, max_size=7), min_size=1, max_size=4),
    st.floats(0.01, 1),
    st.integers(0, 2**32),
)
def test_permuted_texts_contain_every_sentence_whole(texts, share, seed):
    marked = [[f"{i}{sentence}" for i, sentence in enumerate(sentences)] for sentences in texts]
    for sentences, moved in zip(marked, permute(marked, share, seed), strict=True):
        digits = [i for i, char in enumerate(moved) if char.isdigit()]
        assert sorted(moved[a:b] for a, b in zip(digits, [*digits[1:], None], strict=True)) == sentences
