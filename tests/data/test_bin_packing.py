"""Packed rows: by hand, for any sizes, and how full they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.windows.windowing import pack_documents


def rows_of(sizes, capacity):
    sizes = np.asarray(sizes).reshape(len(sizes), -1)
    documents, ends = pack_documents(sizes, np.atleast_1d(capacity))
    return [part.tolist() for part in np.split(documents, ends[:-1])]


def test_rows_by_hand():
    # 7 opens a row, and 6 another. The first 2 goes where it leaves least, to the 7, whose row then has no space for
    # another; the other two fill the row of the 6, and the 1 fills the row of the 7.
    rows = rows_of([2, 6, 2, 7, 1, 2], 10)
    assert sorted(map(sorted, rows)) == [[0, 3, 4], [1, 2, 5]]
    # The tightest row first: 3 goes to the 7 and not to the 6.
    assert sorted(map(sorted, rows_of([6, 7, 3], 10))) == [[0], [1, 2]]


def test_a_document_must_fit_both_stacks():
    sizes = [(6, 1), (4, 9), (4, 8), (2, 1)]
    assert sorted(map(sorted, rows_of(sizes, [10, 9]))) == [[0, 2], [1], [3]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=40))
def test_every_document_once_and_no_row_over_capacity(sizes):
    capacity = np.asarray([9, 7])
    rows = rows_of(sizes, capacity)
    assert sorted(document for row in rows for document in row) == list(range(len(sizes)))
    assert all((np.sum([sizes[d] for d in row], axis=0) <= capacity).all() for row in rows)
    assert rows == rows_of(sizes, capacity)


@pytest.mark.parametrize("block", [300, 1 << 13])
def test_rows_are_full_and_the_first_resemble_the_others(monkeypatch, block):
    monkeypatch.setattr("data.windows.windowing._BLOCK", block)
    random = np.random.default_rng(0)
    sizes = np.minimum(np.exp(random.normal(4, 0.9, 3000)), 512).astype(int)
    rows = rows_of(sizes, 512)
    assert sizes.sum() / (512 * len(rows)) > 0.97
    mean_size = [np.mean([sizes[d] for row in part for d in row]) for part in (rows[:150], rows)]
    assert mean_size[0] == pytest.approx(mean_size[1], rel=0.15)
