"""Identical and near-identical documents of the shards of a corpus, found with files in place of memory.

Documents are numbered in the order of the corpus, over all shards: whichever worker wrote a shard, the same document
of a group is the first.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from contract.rng import GOLDEN, mix64
from data.duplicates.external_sort import ExternalSort
from data.duplicates.near_pairs import NearPairs
from data.sources.files import text_digest
from data.sources.filters import FilterConfig
from data.store.shard import Shard

REMOVED_AS = {1: "exact_duplicates", 2: "near_duplicates"}  # values of `copies_to_remove`
_ROUNDS = 16  # of the search: each leaves about a ninth of a large group
_BLOCK = 1 << 14  # documents in memory at the same time


class IdsFile:
    """A file of int64, which grows at its end and is then an array."""

    def __init__(self, path: Path):
        """Creates the file. Raises OSError."""
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  closed by `array`

    def append(self, ids: np.ndarray) -> None:
        """Appends int64 [n]. Raises OSError."""
        self._file.write(ids.astype(np.int64, copy=False).tobytes())

    def array(self) -> np.ndarray:
        """Returns all numbers, a memory map. Nothing can be appended any more."""
        self._file.close()
        return np.memmap(self._path, np.int64, "r") if self._path.stat().st_size else np.zeros(0, np.int64)


def first_of_each(
    folder: Path, values: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (ids, firsts), int64 [n] each, by ascending id: firsts[i] is the least id with the value of ids[i].

    folder: for temporary files. values: arrays (values, ids), integers [n] each; ids differ. Raises OSError.
    """
    by_value, by_id = ExternalSort(folder, 2), ExternalSort(folder, 2)
    for block, ids in values:
        by_value.add(block, ids)
    before = None  # the last value, and its first id
    for rows in by_value.blocks():
        starts = np.flatnonzero(np.concatenate([[True], rows[1:, 0] != rows[:-1, 0]]))
        firsts = rows[starts, 1]
        if before is not None and before[0] == rows[0, 0]:
            firsts[0] = before[1]
        before = rows[-1, 0], firsts[-1]
        by_id.add(rows[:, 1], np.repeat(firsts, np.diff(np.append(starts, len(rows)))))
    for rows in by_id.blocks():
        ids, of_each = rows.astype(np.int64).T
        yield ids, of_each


def near_pairs_of(folder: Path, shards: Sequence[Shard]) -> NearPairs:
    """Returns a search among all documents of `shards`, which have signatures. Raises OSError.

    folder: for temporary files.
    """
    search = NearPairs(folder)
    for shard in shards:
        for signatures, sets, sizes in shard.signatures():
            search.add(signatures, sets, sizes)
    return search


def copies_to_remove(
    folder: Path, shards: Sequence[Shard], filters: FilterConfig, search: NearPairs | None
) -> np.ndarray | None:
    """Returns why each document is to be removed: uint8 [documents], a key of REMOVED_AS, or 0 for one that stays.

    Documents are identical if they have the same prompt, text and label; the first of each stays, in the order of the
    corpus. Near-identical ones are compared as prompt, space and text, without labels. With remove_duplicates="near", a
    document is removed if it is found near-identical to an earlier one that stays, so that each removed document has a
    copy in the store. Where large groups were searched in part (`NearPairs.pairs`), the search is repeated among the
    documents that stay, up to _ROUNDS times.
    The corpus' own held-out documents (data.heldout_path) stay, and remove no others.

    Args:
      folder: for temporary files.
      shards: the corpus.
      filters: what to remove; None is returned for remove_duplicates="none".
      search: that of `near_pairs_of`, for "near".

    Raises OSError.
    """
    if filters.remove_duplicates == "none":
        return None
    removed = np.zeros(sum(map(len, shards)), np.uint8)
    for ids, firsts in first_of_each(folder, _texts(shards)):
        removed[ids[ids != firsts]] = 1
    if filters.remove_duplicates == "near":
        assert search is not None
        copy_of = np.zeros(len(removed), np.int64)
        for _ in range(_ROUNDS):
            documents = IdsFile(folder / "compared.bin")
            for _, ids in _texts(shards):
                documents.append(ids[removed[ids] == 0])
            num_removed = _remove_near(folder, search, documents.array(), filters.jaccard, removed, copy_of)
            if not (num_removed and search.is_partial):
                break
            _compare_again(search, filters.jaccard, removed, copy_of)
    return removed


def _remove_near(
    folder: Path, search: NearPairs, documents: np.ndarray, jaccard: float, removed: np.ndarray, copy_of: np.ndarray
) -> int:
    """Removes those of `documents` that are near-identical to an earlier one that stays, and returns their number.

    copy_of: int64 [all documents], gets that earlier one for each.
    """
    by_second = ExternalSort(folder, 2)
    for pairs in search.pairs(documents, jaccard, with_first=True):
        by_second.add(pairs[:, 1], pairs[:, 0])
    num_removed = 0
    for rows in by_second.blocks():
        for second, first in rows.tolist():
            if not removed[first] and not removed[second]:
                removed[second], copy_of[second] = 2, first
                num_removed += 1
    return num_removed


def _compare_again(search: NearPairs, jaccard: float, removed: np.ndarray, copy_of: np.ndarray) -> None:
    """Compares each document whose copy has been removed with the copy of that one, and keeps it unless they are near.

    So each removed document has a copy that stays.
    """
    for start in range(0, len(removed), _BLOCK):
        ids = start + np.flatnonzero(removed[start : start + _BLOCK] == 2)
        ids = ids[removed[copy_of[ids]] != 0]
        removed[ids] = 0
        pairs = np.stack([ids, copy_of[copy_of[ids]]], axis=1)
        for near in search.verified(pairs, jaccard):
            copy_of[near[:, 0]] = near[:, 1]
            removed[near[:, 0]] = 2


def _texts(shards: Sequence[Shard]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields digests of the documents' prompts, texts and labels, and the documents' numbers.

    Without the corpus' own held-out documents.
    """
    start = 0
    for shard in shards:
        labels = np.array([text_digest(label.encode("utf-8")) for label in shard.meta.labels], np.uint64)
        for block in shard.documents():
            ids = np.arange(start, start + len(block))
            chosen = ~block["is_heldout"]
            # "digest" is that of the prompt, where there is one, and so separates the prompt from the text.
            parts = block["text_digest"], block["digest"], block["prompt_length"] > 0, labels[block["label_id"]]
            keys = np.zeros(len(block), np.uint64)
            for part in parts:
                keys = mix64(keys * GOLDEN ^ part.astype(np.uint64))
            yield keys[chosen], ids[chosen]
            start += len(block)
