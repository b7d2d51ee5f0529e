"""Documents of a token store, such as one side of the train/held-out split, in the order in which they are read."""

import functools

import numpy as np

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
