"""Windows by hand, and for any documents: every token once, and no window across a boundary."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.windows import WindowSpec
from data.documents import Documents
from data.windows import WindowReader, gather
from tests.data.corpus import examples_of_window

EOS = 1


def documents_of(texts, index=None):
    """Documents with the given content ids, over a store in memory."""
    tokens = np.array([id_ for text in texts for id_ in [*text, EOS]], np.uint16)
    offsets = np.cumsum([0] + [len(text) + 1 for text in texts])
    store = SimpleNamespace(tokens=tokens, offsets=offsets)
    return Documents(store, np.arange(len(texts)) if index is None else np.array(index), "training")


def read_all(texts, raw_length, mode, eos, index=None):
    reader = WindowReader(documents_of(texts, index), WindowSpec("d", 1.0, raw_length, mode, eos))
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


def test_documents_are_read_in_the_views_order():
    assert read_all(TEXTS, 4, "join", True, index=[2, 0]) == [[[30, 31, 32, 33]], [[34, 1, 10, 11]], [[12, 1]]]


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
        reader = WindowReader(documents, WindowSpec("d", 1.0, 2, mode, True))
        indices = np.array([3, 0, 3, len(reader) - 1])
        padded, lengths = gather(reader.tokens, reader.slices(indices), 5, 7)
        alone = [example for i in indices for example in examples_of_window(reader, i)]
        assert [tuple(row[:n].tolist()) for row, n in zip(padded, lengths, strict=True)] == alone
        assert all((row[n:] == 7).all() for row, n in zip(padded, lengths, strict=True))
        assert padded.dtype == lengths.dtype == np.int32 and padded.shape[1] == 5


@pytest.mark.parametrize("mode", ["join", "pack"])
def test_too_few_tokens_for_a_window(mode):
    message = (
        r"the training documents have 9 tokens, fewer than one window of 10 for 'x': set a smaller "
        r"data\.inputs_length, a data\.path with more text, or another data\.heldout_fraction"
    )
    with pytest.raises(ConfigError, match=message):
        WindowReader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, mode, False))
    assert len(WindowReader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, mode, True))) == 2  # the EOS tokens count
    assert len(WindowReader(documents_of(TEXTS), WindowSpec("x", 1.0, 10, "split", False))) == 3
