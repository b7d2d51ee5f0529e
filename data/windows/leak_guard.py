"""Held-out documents that are training text too: identical or near-identical ones, and those of other corpora.

A model can recite such documents. They are counted at the start of every run, and `data.near_duplicates` decides
whether the training side keeps its copies.
"""

import dataclasses
from typing import Literal

import numpy as np

from command.program import plural
from contract.errors import ConfigError
from contract.rng import mix64
from data.duplicates.near import JACCARD, MAX_DOCUMENTS, MAX_PAIRS
from data.store.store import TokenStore
from data.windows.documents import Documents

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
        documents = plural(self.heldout, "held-out document")
        line = f"of {documents}, {self.identical:,} are identical {near} to training documents"
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
    identical, near_identical = copies_of(heldout, train)
    in_heldout = np.logical_or(*copies_of(train, heldout))
    if choice == "drop":
        _check_drop(train, in_heldout)
    overlap = Overlap(
        heldout=len(heldout),
        identical=int(np.count_nonzero(identical)),
        near_identical=int(np.count_nonzero(near_identical & ~identical)),
        train=int(np.count_nonzero(in_heldout)),
        dropped=choice == "drop",
        searched=train.store.meta["near_duplicates_searched"],
    )
    return train.subset(~in_heldout) if choice == "drop" else train, overlap


def _check_drop(train: Documents, in_heldout: np.ndarray) -> None:
    """Raises ConfigError where near-identical documents were not searched, or where all training documents are such."""
    if not train.store.meta["near_duplicates_searched"]:
        raise ConfigError(
            f"data.near_duplicates='drop' is for corpora of up to {MAX_DOCUMENTS:,} documents, and this one has "
            f"{len(train.store):,}: set data.filters.remove_duplicates='near', or data.near_duplicates='keep'"
        )
    if in_heldout.all():
        raise ConfigError(
            f"data.near_duplicates='drop' leaves no training document: all {len(train):,} are near-identical to "
            "held-out documents; set it to 'keep', or add text to data.path"
        )


def copies_of(documents: Documents, others: Documents) -> tuple[np.ndarray, np.ndarray]:
    """bool [len(documents)] each: whether a document of `others` is identical, and whether one is near-identical.

    Of a group of more than MAX_PAIRS near-identical documents, the later ones are compared with the first ones alone.
    Two of them count as near-identical where they are so to the same one of these.
    """
    store = documents.store
    in_others, near, meets = np.zeros((3, len(store)), bool)  # by the first document with a text
    in_others[store.duplicate_ids[others.index]] = True
    first, second = store.near_duplicate_pairs.T
    near[first[in_others[second]]] = True
    near[second[in_others[first]]] = True
    is_late = np.bincount(second, minlength=len(store))[second] >= MAX_PAIRS
    meets[first[is_late & in_others[second]]] = True
    near[second[is_late & meets[first]]] = True
    texts = store.duplicate_ids[documents.index]
    return in_others[texts], near[texts]


def describe_copies(store: TokenStore) -> str:
    """One line: how many documents of a store are copies of earlier ones."""
    identical = np.count_nonzero(store.duplicate_ids != np.arange(len(store)))
    near = len(np.unique(store.near_duplicate_pairs[:, 1]))
    line = f"{identical:,} of {len(store):,} documents are identical to an earlier one"
    if not store.meta["near_duplicates_searched"]:
        return f"{line}; near-identical ones are not counted in corpora of more than {MAX_DOCUMENTS:,} documents"
    return f"{line}, and {near:,} other ones are near-identical to one (Jaccard similarity >= {JACCARD})"


def is_trained_on(
    documents: Documents, train: Documents, heldout: Documents, *, not_by_chance: int | None = None
) -> np.ndarray:
    """Returns which of `documents` are text of `train`, where a corpus is split into `train` and `heldout`: bool [n].

    The stores may differ. A document that is equal to one of the training side is such text. A document of a file that
    the corpus contains is such text too if the file is on the training side. If the file is on both sides, because its
    documents were split, the document must be on neither, because it was cut in another way. JSON lines are documents
    however they are read, and with another data.text_key they are other text: they are compared as documents alone.
    Text that is contained in a longer document or was edited is not found.

    not_by_chance: for the training text of another run, the bytes from which on a document of a file that the corpus
      does not contain counts if it is equal to one of the training side: shorter texts may be equal by chance. A text
      of a file of the corpus that is on both sides then counts as held out. None: every equal text counts.
    """
    file_in_train, file_in_heldout = (_is_in(documents, side, "file_digests") for side in (train, heldout))
    text_in_train, text_in_heldout = (_is_in(documents, side, "text_digests") for side in (train, heldout))
    is_trained = file_in_train & ~(file_in_heldout & text_in_heldout)
    if documents.store.meta["cut"] == train.store.meta["cut"] == "JSON line":
        is_trained &= text_in_train
    if not_by_chance is None:
        return is_trained | text_in_train
    is_long = documents.store.text_bytes[documents.index] >= not_by_chance
    return is_trained | (~file_in_train & ~file_in_heldout & text_in_train & is_long)


def _is_in(documents: Documents, others: Documents, name: str) -> np.ndarray:
    """bool [n]: whether the digest of each of `documents`, such as "text_digests", is one of `others`."""
    return np.isin(getattr(documents.store, name)[documents.index], getattr(others.store, name)[others.index])


def have_equal_documents(first: TokenStore, second: TokenStore) -> bool:
    """Returns whether two stores have the same documents of the same files, with the same prompts, in any order."""
    if len(first) != len(second):
        return False
    texts = (np.sort(mix64(s.digests + s.is_heldout) ^ s.text_digests) for s in (first, second))
    return np.array_equal(*texts) and np.array_equal(*(np.unique(s.file_digests) for s in (first, second)))
