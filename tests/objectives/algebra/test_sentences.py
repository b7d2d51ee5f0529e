import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.algebra.sentences import permuted_sentences, sentence_ends
from tests.objectives.helpers import vocab


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3


def some_keys(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def split(text: str, rule: str) -> list[str]:
    """The sentences of a text, by `sentence_ends`."""
    tokens = ids(text)
    ends = sentence_ends(tokens[None], np.asarray([len(tokens)]), vocab(), rule)[0]
    return ["".join(chr(t - 3) for t in part) for part in np.split(tokens, np.flatnonzero(ends)[:-1] + 1)]


@pytest.mark.parametrize(
    ("text", "rule", "sentences"),
    [
        ("One. Two? Three! Four", "stops", ["One.", " Two?", " Three!", " Four"]),
        ("pi is 3.14, np.max is not.", "stops", ["pi is 3.14, np.max is not."]),
        ("a.\nb", "stops", ["a.", "\nb"]),
        ("a.\nb", "newlines", ["a.\n", "b"]),
        ("a.\nb", "stops_and_newlines", ["a.\n", "b"]),  # of two ends in a row the last one counts
        ("a\n\n\nb\n", "stops_and_newlines", ["a\n\n\n", "b\n"]),
        ("wait... what", "stops", ["wait...", " what"]),
        ("no end", "stops_and_newlines", ["no end"]),
        ("\n\n", "newlines", ["\n\n"]),
        (".", "stops", ["."]),
        ("x", "newlines", ["x"]),
    ],
)
def test_sentences_by_hand(text, rule, sentences):
    assert split(text, rule) == sentences


def test_what_stands_behind_an_example_ends_no_sentence():
    tokens = ids("ab. \n\n")[None]
    ends = sentence_ends(tokens, np.asarray([3]), vocab(), "stops_and_newlines")
    assert ends.tolist() == [[False, False, True, False, False, False]]


def permute(texts: list[list[str]], share: float, seed: int = 0) -> list[str]:
    """Texts given as sentences, with their sentences permuted."""
    lengths = np.asarray([sum(map(len, sentences)) for sentences in texts])
    tokens = np.zeros((len(texts), lengths.max()), np.int32)
    ends = np.zeros(tokens.shape, bool)
    for e, sentences in enumerate(texts):
        tokens[e, : lengths[e]] = ids("".join(sentences))
        ends[e, np.cumsum([len(sentence) for sentence in sentences]) - 1] = True
    order = permuted_sentences(some_keys(len(texts), seed), ends, share)
    assert (np.sort(order, axis=1) == np.arange(tokens.shape[1])).all()
    moved = np.take_along_axis(tokens, order, axis=1)
    return ["".join(chr(t - 3) for t in row[:length]) for row, length in zip(moved, lengths, strict=True)]


def test_every_order_of_sentences_is_equally_likely():
    """And that they change order at all: in fairseq they once did not (issue 2692)."""
    orders, counts = np.unique(permute([["a", "bbb", "cc"]] * 6000, 1.0), return_counts=True)
    assert orders.tolist() == ["abbbcc", "accbbb", "bbbacc", "bbbcca", "ccabbb", "ccbbba"]
    assert (np.abs(counts - 1000) < 150).all()


def test_a_share_of_the_sentences_changes_places_among_themselves():
    """ceil(.4 * 4) = 2 of four: any two are swapped, or stay, each pair and each order as likely."""
    orders, counts = np.unique(permute([["a", "b", "c", "d"]] * 6000, 0.4), return_counts=True)
    assert set(orders) == {"abcd", "bacd", "cbad", "dbca", "acbd", "adcb", "abdc"}
    by_order = dict(zip(orders.tolist(), counts.tolist(), strict=True))
    assert by_order.pop("abcd") == pytest.approx(3000, abs=200)
    assert all(count == pytest.approx(500, abs=110) for count in by_order.values())


def test_one_sentence_stays():
    assert permute([["abc"], ["a", "b"]], 1.0)[0] == "abc"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.text("xyz", min_size=1, max_size=5), min_size=1, max_size=7), min_size=1, max_size=4),
    st.floats(0.01, 1),
    st.integers(0, 2**32),
)
def test_sentences_stay_whole(texts, share, seed):
    marked = [[f"{i}{sentence}" for i, sentence in enumerate(sentences)] for sentences in texts]
    for sentences, moved in zip(marked, permute(marked, share, seed), strict=True):
        digits = [i for i, char in enumerate(moved) if char.isdigit()]
        assert sorted(moved[a:b] for a, b in zip(digits, [*digits[1:], None], strict=True)) == sentences
