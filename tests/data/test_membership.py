"""Which digests are among others, and corpora of the same documents: as NumPy's functions for whole arrays say."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.rng import mix64
from data.windows.membership import Values, have_equal_documents, is_in
from files import mapped_arrays

DIGESTS = st.lists(st.one_of(st.integers(0, 9), st.sampled_from([2**63, 2**64 - 1])), max_size=40)


@pytest.fixture(params=[1, 3, 1 << 16], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK", request.param)
    monkeypatch.setattr(mapped_arrays, "IN_MEMORY_BYTES", 0)
    return request.param


def values_of(array):
    return Values(array.__getitem__, len(array))


def test_values_among_others(block):
    @settings(deadline=None, max_examples=60)
    @given(DIGESTS, DIGESTS)
    def check(some, others):
        some, others = np.array(some, np.uint64), np.array(others, np.uint64)
        expected = np.isin(some, others)
        np.testing.assert_array_equal(is_in(values_of(some), values_of(others), Path()), expected)
        chosen = np.flatnonzero(some % 3 == 0)
        found = is_in(values_of(some).at(chosen), values_of(others), Path())
        np.testing.assert_array_equal(found, expected[chosen])

    check()


class Store(SimpleNamespace):
    def __len__(self):
        return len(self.digests)


def store_of(rows):
    digests, texts, files, is_heldout = zip(*rows, strict=True)
    arrays = (np.array(column, np.uint64) for column in (digests, texts, files))
    fields = dict(zip(("digests", "text_digests", "file_digests"), arrays, strict=True))
    return Store(folder=Path(), is_heldout=np.array(is_heldout, bool), **fields)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=9
)


def test_equal_documents(block):
    @settings(deadline=None, max_examples=100)
    @given(ROWS, st.one_of(ROWS, st.none()), st.randoms())
    def check(rows, others, random):
        others = others or random.sample(rows, len(rows))  # in another order
        first, second = store_of(rows), store_of(others)
        files = [sorted(set(store.file_digests.tolist())) for store in (first, second)]
        texts = [sorted((mix64(s.digests + s.is_heldout) ^ s.text_digests).tolist()) for s in (first, second)]
        assert have_equal_documents(first, second) == (files[0] == files[1] and texts[0] == texts[1])

    check()


def test_a_document_of_another_file_is_another_one():
    rows = [(1, 2, 5, False), (1, 2, 6, False)]
    assert have_equal_documents(store_of(rows), store_of(rows[::-1]))
    assert not have_equal_documents(store_of(rows), store_of([rows[0], rows[0]]))
    assert not have_equal_documents(store_of(rows), store_of(rows[:1]))
