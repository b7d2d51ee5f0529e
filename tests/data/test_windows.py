"""Windows by hand, and for any documents: every token once, and no window across a boundary."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.windows import WindowSpec
from data.windows.documents import Documents
from data.windows.windowing import gather, make_reader
from tests.data.corpus import examples_of_window

EOS = 1


def documents_of(texts, index=None):
    """Documents with the given content ids, over a store in memory."""
    tokens = np.array([id_ for text in texts for id_ in [*text, EOS]], np.uint16)
    offsets = np.cumsum([0] + [len(text) + 1 for text in texts])
    store = SimpleNamespace(folder=Path(), tokens=tokens, offsets=offsets)
    return Documents(store, np.arange(len(texts)) if index is None else np.array(index), "training")


def read_all(texts, raw_length, mode, eos, index=None):
    reader = make_reader(documents_of(texts, index), WindowSpec("d", 1.0, raw_length, mode, eos))
    return [list(map(list, examples_of_window(reader, i))) for i in range(len(reader))]


TEXTS = [[10, 11, 12], [20], [30, 31, 32, 33, 34]]


@pytest.mark.parametrize(
    ("mode", "eos", "expected"),
    [
        ("join", False, [[[10, 11, 12, 20]], [[30, 31, 32, 33]], [[34]]]),
        ("join", True, [[[10, 11, 12, 1]], [[20, 1, 30, 31]], [[32, 33, 34, 1]]]),
        ("pack", False, [[[10, 11, 12], [20]], [[30, 31, 32, 33]], [[34]]]),
        ("pack", True, [[[10, 11, 12, 1]], [[20, 1], [30, 31]], [[32, 33, 34, 1]]]),
        ("split", False, [[[10, 11, 12]], [[20]], [[30, 31, 32, 33]], [[34]]]),
        ("split", True, [[[10, 11, 12, 1]], [[20, 1]], [[30, 31, 32, 33]], [[34, 1]]]),
    ],
)
def test_windows_of_four_by_hand(mode, eos, expected):
    assert read_all(TEXTS, 4, mode, eos) == expected


TEXT_LISTS = st.lists(st.lists(st.integers(3, 258), min_size=1, max_size=12), min_size=1, max_size=12)


@settings(deadline=None, max_examples=100)
@given(TEXT_LISTS, st.integers(1, 15), st.booleans(), st.sampled_from(["join", "pack", "split"]), st.randoms())
def test_every_token_is_in_one_window(texts, raw_length, eos, mode, random):
    order = random.sample(range(len(texts)), len(texts))
    documents = [texts[d] + [EOS] * eos for d in order]
    stream = [id_ for document in documents for id_ in document]
    if mode != "split" and len(stream) < raw_length:
        with pytest.raises(ConfigError):
            read_all(texts, raw_length, mode, eos, order)
        return
    windows = read_all(texts, raw_length, mode, eos, order)
    assert [id_ for window in windows for piece in window for id_ in piece] == stream
    sizes = [sum(map(len, window)) for window in windows]
    if mode == "split":
        lengths = [len(document) for document in documents]
        assert sizes == [min(raw_length, n - i) for n in lengths for i in range(0, n, raw_length)]
        assert all(len(window) == 1 for window in windows)
    else:
        assert sizes == [min(raw_length, len(stream) - i) for i in range(0, len(stream), raw_length)]
    if mode == "join":
        assert all(len(window) == 1 for window in windows)
    if mode == "pack":
        # The ends of the pieces are the ends of all documents and of all windows.
        ends = set(np.cumsum([len(piece) for window in windows for piece in window]).tolist())
        assert ends == set(np.cumsum(list(map(len, documents))).tolist()) | set(np.cumsum(sizes).tolist())


def test_windows_read_together_are_those_read_alone():
    documents = documents_of(TEXTS)
    for mode in ("join", "pack", "split"):
        reader = make_reader(documents, WindowSpec("d", 1.0, 2, mode, True))
        indices = np.array([3, 0, 3, len(reader) - 1])
        slices = reader.slices(np.zeros(4, np.int64), indices)
        padded, lengths = gather([reader.tokens] * len(slices.starts), slices, 5, 7)
        alone = [example for i in indices for example in examples_of_window(reader, i)]
        assert [tuple(row[:n].tolist()) for row, n in zip(padded, lengths, strict=True)] == alone
        assert all((row[n:] == 7).all() for row, n in zip(padded, lengths, strict=True))
        assert padded.dtype == lengths.dtype == np.int32 and padded.shape[1] == 5


@settings(deadline=None, max_examples=100)
@given(TEXT_LISTS, st.integers(1, 15), st.booleans(), st.sampled_from(["join", "pack", "split"]), st.integers(0, 10**6))
def test_every_token_is_in_one_window_of_every_epoch(texts, raw_length, eos, mode, seed):
    if mode != "split" and sum(map(len, texts)) + eos * len(texts) < raw_length:
        return
    # Ids that are unique in the corpus, so that tokens can be counted by position.
    ids = iter(range(3, 10_000))
    texts = [[next(ids) for _ in text] for text in texts]
    documents = documents_of(texts)
    reader = make_reader(documents, WindowSpec("d", 1.0, raw_length, mode, eos), seed)
    expected = sorted([id_ for text in texts for id_ in text] + [EOS] * eos * len(texts))
    document_of = {id_: d for d, text in enumerate(texts) for id_ in text}
    for epoch in (0, 1, 2**40):
        windows = [examples_of_window(reader, i, epoch) for i in range(len(reader))]
        assert sorted(id_ for window in windows for piece in window for id_ in piece) == expected
        assert all(1 <= sum(map(len, window)) <= raw_length for window in windows)
        pieces = [[id_ for id_ in piece if id_ != EOS] for window in windows for piece in window]
        if mode != "join":
            assert all(len({document_of[id_] for id_ in piece}) <= 1 for piece in pieces)
            assert all(piece == sorted(piece) for piece in pieces)


@pytest.mark.parametrize("mode", ["join", "pack", "split"])
def test_every_epoch_cuts_elsewhere(mode):
    texts = [list(range(10 * d, 10 * d + n)) for d, n in enumerate([9, 10, 7, 10])]
    spec = WindowSpec("d", 1.0, 6, mode, False)
    reader = make_reader(documents_of(texts), spec, seed=5)
    begins = [
        tuple(sorted(piece[0] for i in range(len(reader)) for piece in examples_of_window(reader, i, epoch)))
        for epoch in range(40)
    ]
    assert len(set(begins)) > 20
    again = make_reader(documents_of(texts), spec, seed=5)
    assert [examples_of_window(again, i, 7) for i in range(len(again))] == [
        examples_of_window(reader, i, 7) for i in range(len(reader))
    ]
    fixed = make_reader(documents_of(texts), spec)
    assert [examples_of_window(fixed, i, 0) for i in range(4)] == [examples_of_window(fixed, i, 9) for i in range(4)]


@pytest.mark.parametrize("mode", ["join", "pack"])
def test_over_many_epochs_every_place_of_the_text_is_every_place_of_a_window(mode):
    """Without this, an objective that predicts the last part of a window never predicts the rest of the text."""
    text = [list(range(3, 40)), list(range(40, 43)), list(range(43, 100))]
    reader = make_reader(documents_of(text), WindowSpec("d", 1.0, 10, mode, False), seed=0)
    counts, epochs = np.zeros((100, 10)), 3000
    for epoch in range(epochs):
        indices = np.arange(len(reader))
        slices = reader.slices(np.full(len(indices), epoch), indices)
        place = np.concatenate([np.arange(n) for n in np.bincount(slices.windows, slices.lengths).astype(int)])
        stream = np.concatenate(
            [reader.tokens[begin : begin + n] for begin, n in zip(slices.starts, slices.lengths, strict=True)]
        )
        np.add.at(counts, (stream, place), 1)
    # 97 tokens in 10 windows: a token is at place p in 1 / 10 of the epochs, slightly more often at low places.
    shares = counts[3:] / epochs
    assert (np.abs(shares - shares.mean(axis=0)) < 0.03).all()
    np.testing.assert_allclose(shares.mean(axis=0), [10 / 97] * 7 + [9 / 97] * 3, atol=1e-12)


@pytest.mark.parametrize("mode", ["join", "pack"])
def test_too_few_tokens_for_a_window(mode):
    message = (
        r"the training documents have 9 tokens, fewer than one window of 10 for 'x': set a smaller "
        r"data\.inputs_length, a data\.path with more text, or another data\.heldout_fraction"
    )
    with pytest.raises(ConfigError, match=message):
        make_reader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, mode, False))
    assert len(make_reader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, mode, True))) == 2  # the EOS tokens count
    assert len(make_reader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, "split", False))) == 3
