"""Held-out documents that the training side contains too, identical or near-identical (data/duplicates/near_pairs.py).

A model can recite such documents. They are counted at the start of every run, and `data.near_duplicates` decides
whether the training side keeps its copies.
"""

import dataclasses
from typing import Literal

import numpy as np

from contract.errors import ConfigError
from data.duplicates.near_pairs import JACCARD, MAX_DOCUMENTS
from data.store.store import TokenStore
from data.windows.documents import Documents
from files.mapped_arrays import blocks, new_array

NearDuplicates = Literal["keep", "drop"]  # the values of data.near_duplicates


@dataclasses.dataclass(frozen=True)
class Overlap:
    """What the two sides of a split have in common, in documents.

    Attributes:
      heldout: held-out documents.
      identical: held-out documents whose text is also the text of a training document.
      near_identical: further held-out documents that are near-identical to a training document.
      train: training documents that are identical or near-identical to a held-out document.
      dropped: whether these training documents are dropped.
      searched: whether near-identical documents were searched; False for more than MAX_DOCUMENTS documents.
    """

    heldout: int
    identical: int
    near_identical: int
    train: int
    dropped: bool
    searched: bool

    def __str__(self) -> str:
        """One line, for the summary of a run."""
        near = f"and {self.near_identical:,} near-identical (Jaccard >= {JACCARD})"
        if not self.searched:
            near = f"(near-identical ones are not counted in corpora of more than {MAX_DOCUMENTS:,} documents)"
        documents = "document" if self.heldout == 1 else "documents"
        line = (
            f"of {self.heldout:,} held-out {documents}, {self.identical:,} are identical {near} to training documents"
        )
        if not self.train:
            return line
        copies = "1 copy" if self.train == 1 else f"{self.train:,} copies"
        if self.dropped:
            return f"{line}; {copies} in training dropped"
        remedy = " (data.near_duplicates='drop' drops them)" if self.searched else ""
        return f"{line}; {copies} in training{remedy}"


def near_duplicates(train: Documents, heldout: Documents, choice: NearDuplicates) -> tuple[Documents, Overlap]:
    """Returns the training documents of a run, and what both sides had in common before any were dropped.

    "keep" returns `train`. "drop" returns it without the documents that are identical or near-identical to a held-out
    document; the held-out side stays, so that runs remain comparable.

    Raises ConfigError for "drop" if near-identical documents were not searched, or if no training document remains.
    """
    store = train.store
    if heldout.store is not store:
        raise ValueError("both sides must be documents of one token store")
    searched = store.meta["near_duplicates_searched"]
    if choice == "drop" and not searched:
        raise ConfigError(
            f"data.near_duplicates='drop' is for corpora of up to {MAX_DOCUMENTS:,} documents, and this one has "
            f"{len(store):,}: set data.filters.remove_duplicates='near', or data.near_duplicates='keep'"
        )
    identical, near_identical = _copies(heldout, train)
    in_heldout, near_heldout = _copies(train, heldout)
    np.logical_or(in_heldout, near_heldout, out=in_heldout)
    if choice == "drop" and in_heldout.all():
        raise ConfigError(
            f"data.near_duplicates='drop' leaves no training document: all {len(train):,} are near-identical to "
            "held-out documents; set it to 'keep', or add text to data.path"
        )
    overlap = Overlap(
        heldout=len(heldout),
        identical=int(np.count_nonzero(identical)),
        near_identical=int(np.count_nonzero(near_identical & ~identical)),
        train=int(np.count_nonzero(in_heldout)),
        dropped=choice == "drop",
        searched=searched,
    )
    if choice == "drop":
        train = train.without(in_heldout)
    return train, overlap


def describe_copies(store: TokenStore) -> str:
    """One line: how many documents of a store are copies of earlier ones."""
    identical = 0
    for block in blocks(len(store)):
        identical += int((store.duplicate_ids[block] != np.arange(block.start, block.stop)).sum())
    near = len(np.unique(store.near_duplicate_pairs[:, 1]))
    line = f"{identical:,} of {len(store):,} documents are identical to an earlier one"
    if not store.meta["near_duplicates_searched"]:
        return f"{line}; near-identical ones are not counted in corpora of more than {MAX_DOCUMENTS:,} documents"
    return f"{line}, and {near:,} other ones are near-identical to one (Jaccard similarity >= {JACCARD})"


def _copies(documents: Documents, others: Documents) -> tuple[np.ndarray, np.ndarray]:
    """bool [len(documents)] each: whether a document of `others` is identical, and whether one is near-identical."""
    store, folder = documents.store, documents.store.folder
    in_others, near = (new_array(folder, len(store), np.bool_) for _ in range(2))  # by the first document with a text
    for block in blocks(len(others)):
        in_others[store.duplicate_ids[others.index[block]]] = True
    for block in blocks(len(store.near_duplicate_pairs)):
        first, second = store.near_duplicate_pairs[block].T
        near[first[in_others[second]]] = True
        near[second[in_others[first]]] = True
    identical, near_identical = (new_array(folder, len(documents), np.bool_) for _ in range(2))
    for block in blocks(len(documents)):
        texts = store.duplicate_ids[documents.index[block]]
        identical[block], near_identical[block] = in_others[texts], near[texts]
    return identical, near_identical
