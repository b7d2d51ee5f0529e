"""The documents of one side of the train/held-out split, in the order in which they are read."""

import functools
from typing import TYPE_CHECKING

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits

if TYPE_CHECKING:
    from data.store import TokenStore


class Documents:
    """Some documents of a token store, in an order of their own.

    Attributes:
      store: where the tokens are.
      index: int64 [n], each document's number in the store.
      label: what messages call this side of the split.
    """

    def __init__(self, store: "TokenStore", index: np.ndarray, label: str):
        self.store = store
        self.index = index
        self.label = label

    def __len__(self) -> int:
        return len(self.index)

    def subset(self, chosen: np.ndarray) -> "Documents":
        """Those that are `chosen`, bool [n], in the same order."""
        return Documents(self.store, self.index[chosen], self.label)

    def tokens(self, i: int) -> np.ndarray:
        """Document i without its EOS, unsigned [length]."""
        d = self.index[i]
        return self.store.tokens[self.store.offsets[d] : self.store.offsets[d + 1] - 1]

    def name(self, i: int) -> str:
        """The file or dataset that document i is from."""
        return self.store.names[self.store.name_ids[self.index[i]]]

    def ends(self, eos: bool) -> np.ndarray:
        """int64 [n]: where each document ends in the stream of all of them, with or without their EOS tokens."""
        return self._ends_with_eos if eos else self._ends_without_eos

    @functools.cached_property
    def _ends_with_eos(self) -> np.ndarray:
        return np.cumsum(self.store.offsets[self.index + 1] - self.store.offsets[self.index])

    @functools.cached_property
    def _ends_without_eos(self) -> np.ndarray:
        return self._ends_with_eos - np.arange(1, len(self) + 1)


def split_by_digest(digests: np.ndarray, heldout_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits documents by what is in them: those with equal digests, uint64 [n], are all on the same side.

    The held-out side gets that fraction of the *distinct* documents, at least one, and leaves at least one. Each side's
    order is a seeded shuffle, so that neighbours in a joined stream are random documents and not neighbours on disk.

    Returns indices of the training and of the held-out documents, int64. Raises ConfigError for a fraction outside
    (0, 1) and where there are not two distinct documents.
    """
    if not 0 < heldout_fraction < 1:
        raise ConfigError(f"data.heldout_fraction={heldout_fraction} must lie between 0 and 1, both excluded")
    ranks = mix64(digests ^ np.uint64(seed_bits(seed, "split")))  # bijective: equal ranks are equal digests
    distinct = np.unique(ranks)
    if len(distinct) < 2:
        have = "one document" if len(digests) == 1 else f"{len(digests)} documents, all the same"
        raise ConfigError(
            f"data.heldout_fraction={heldout_fraction} needs two different documents and the corpus has {have}: "
            "set data.document_per='line' or 'paragraph', or add text to data.path"
        )
    num_heldout = min(max(round(heldout_fraction * len(distinct)), 1), len(distinct) - 1)
    is_heldout = ranks < distinct[num_heldout]
    # Not the order of the ranks themselves, which would put copies of a document side by side.
    order = np.argsort(mix64(ranks + np.arange(len(ranks), dtype=np.uint64)), kind="stable")
    return order[~is_heldout[order]], order[is_heldout[order]]
