"""Sorted rows, in memory and in many runs, equal NumPy's, whatever is repeated."""

import numpy as np
import pytest

from data.duplicates import external_sort
from data.duplicates.external_sort import ExternalSort


@pytest.mark.parametrize("run_rows", [4, 7, 1000])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("values", [2, 30, 2**64 - 1], ids=["repeated", "some repeated", "distinct"])
def test_rows_are_those_of_one_sort(tmp_path, monkeypatch, run_rows, unique, values):
    monkeypatch.setattr(external_sort, "RUN_ROWS", run_rows)
    monkeypatch.setattr(external_sort, "_MERGED_RUNS", 3)  # runs are merged into longer ones, twice
    rows = np.random.default_rng(0).integers(values, size=(100, 3), dtype=np.uint64, endpoint=True)
    sort = ExternalSort(tmp_path, 3, unique=unique)
    for start, end in ((0, 3), (3, 50), (50, 50), (50, 100)):
        sort.add(*rows[start:end].T)
    expected = sorted(map(tuple, rows.tolist()))
    expected = sorted(set(expected)) if unique else expected
    for _ in range(2):
        blocks = list(sort.blocks())
        assert list(map(tuple, np.concatenate(blocks).tolist())) == expected
    assert run_rows == 1000 or len(blocks) > 1
    assert not list(tmp_path.iterdir())


def test_blocks_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "RUN_ROWS", 1000)
    sort = ExternalSort(tmp_path, 1)
    sort.add(np.random.default_rng(0).permutation(5000))
    assert max(map(len, sort.blocks())) <= 1000


def test_no_rows(tmp_path):
    assert list(ExternalSort(tmp_path, 2).blocks()) == []
