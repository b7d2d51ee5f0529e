"""The documents of one side of the train/held-out split, in the order in which they are read."""

import functools

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from data.store import TokenStore


class Documents:
    """A selection of the documents of a token store, in a given order.

    Attributes:
      store: the token store.
      index: int64 [n], the number in the store of each document.
      label: the name of this side of the split, for messages.
    """

    def __init__(self, store: TokenStore, index: np.ndarray, label: str):
        self.store = store
        self.index = index
        self.label = label

    def __len__(self) -> int:
        return len(self.index)

    def subset(self, chosen: np.ndarray) -> "Documents":
        """The documents where `chosen`, bool [n], is True, in the same order."""
        return Documents(self.store, self.index[chosen], self.label)

    def tokens(self, i: int) -> np.ndarray:
        """The tokens of document i without EOS, unsigned integers [length]."""
        d = self.index[i]
        return self.store.tokens[self.store.offsets[d] : self.store.offsets[d + 1] - 1]

    def name(self, i: int) -> str:
        """The file or dataset that document i is from."""
        return self.store.names[self.store.name_ids[self.index[i]]]

    def ends(self, eos: bool) -> np.ndarray:
        """int64 [n]: where each document ends in the concatenated documents, with or without their EOS tokens."""
        return self._ends_with_eos if eos else self._ends_without_eos

    @functools.cached_property
    def _ends_with_eos(self) -> np.ndarray:
        return np.cumsum(self.store.offsets[self.index + 1] - self.store.offsets[self.index])

    @functools.cached_property
    def _ends_without_eos(self) -> np.ndarray:
        return self._ends_with_eos - np.arange(1, len(self) + 1)


def split_documents(store: TokenStore, heldout_fraction: float, seed: int) -> tuple[Documents, Documents]:
    """The training and the held-out documents of a store. Splits, and raises ConfigError, as `split_by_digest`."""
    train, heldout = split_by_digest(store.digests, heldout_fraction, seed)
    return Documents(store, train, "training"), Documents(store, heldout, "held-out")


def split_by_digest(digests: np.ndarray, heldout_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits documents by their contents: documents with equal digests, uint64 [n], are on the same side of the split.

    The held-out side gets `heldout_fraction` of the *distinct* documents, at least one and at most all but one. The
    order of each side is a seeded shuffle, so that consecutive documents in joined text are random documents and not
    consecutive on disk.

    Returns indices of the training and of the held-out documents, int64. Raises ConfigError for a fraction outside
    (0, 1), and for fewer than two distinct documents.
    """
    if not 0 < heldout_fraction < 1:
        raise ConfigError(f"data.heldout_fraction={heldout_fraction} must lie between 0 and 1, both excluded")
    ranks = mix64(digests ^ np.uint64(seed_bits(seed, "split")))  # bijective: only equal digests have equal ranks
    distinct = np.unique(ranks)
    if len(distinct) < 2:
        found = "one document" if len(digests) == 1 else f"{len(digests)} equal documents"
        raise ConfigError(
            f"data.heldout_fraction={heldout_fraction} needs two different documents, and the corpus has {found}: "
            "set data.document_per='line' or 'paragraph', or add text to data.path"
        )
    num_heldout = min(max(round(heldout_fraction * len(distinct)), 1), len(distinct) - 1)
    is_heldout = ranks < distinct[num_heldout]
    # Sorting by the ranks themselves would put equal documents next to each other.
    order = np.argsort(mix64(ranks + np.arange(len(ranks), dtype=np.uint64)), kind="stable")
    return order[~is_heldout[order]], order[is_heldout[order]]
