"""Documents of token stores, such as one side of the train/held-out split, in the order in which they are read."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from data.store.store import TokenStore
from data.windows.epoch_orders import EpochOrders
from files.mapped_arrays import select, sums


class Documents:
    """A selection of the documents of a token store, in a given order: the text of one corpus.

    Attributes:
      store: the token store.
      index: int64 [n], the number in the store of each document.
      label: the name of this side of the split, for messages.
      first_number: the number of the store's first document where the documents of several stores are numbered
        together (MixedDocuments); 0 for one store.
    """

    def __init__(self, store: TokenStore, index: np.ndarray, label: str, first_number: int = 0):
        self.store = store
        self.index = index
        self.label = label
        self.first_number = first_number

    def __len__(self) -> int:
        return len(self.index)

    @property
    def parts(self) -> "tuple[Documents, ...]":
        """The documents of each corpus: these."""
        return (self,)

    @property
    def factors(self) -> tuple[float, ...]:
        """As MixedDocuments.factors."""
        return (1.0,)

    def subset(self, is_chosen: Callable[[slice], np.ndarray]) -> "Documents":
        """The documents where `is_chosen`, bool [n] of a slice of them, is True, in the same order."""
        index = select(self.index, is_chosen, self.store.folder)
        return Documents(self.store, index, self.label, self.first_number)

    def without(self, dropped: np.ndarray) -> "Documents":
        """The documents where `dropped`, bool [number of documents], is False, in the same order."""
        return self.subset(lambda block: ~dropped[block])

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

    def epoch_orders(self, eos: bool) -> EpochOrders:
        """The orders of the documents in all epochs, with or without their EOS tokens."""
        return self._orders_with_eos if eos else self._orders_without_eos

    def bytes_covered(self) -> float:
        """The share of the UTF-8 bytes of the documents that their tokens spell, as TokenStore.bytes_covered."""
        return self.store.bytes_covered(self.index)

    def in_text(self, numbers: np.ndarray) -> np.ndarray:
        """TokenStore.in_text of documents with these `numbers` among the documents of all stores, int64 [n]."""
        return self.store.in_text(numbers - self.first_number)

    @functools.cached_property
    def _ends_with_eos(self) -> np.ndarray:
        return self._ends(eos=True)

    @functools.cached_property
    def _ends_without_eos(self) -> np.ndarray:
        return self._ends(eos=False)

    @functools.cached_property
    def _orders_with_eos(self) -> EpochOrders:
        return EpochOrders(self._ends_with_eos, self.store.folder)

    @functools.cached_property
    def _orders_without_eos(self) -> EpochOrders:
        return EpochOrders(self._ends_without_eos, self.store.folder)

    def _ends(self, eos: bool) -> np.ndarray:
        offsets = self.store.offsets

        def lengths_of(block: slice) -> np.ndarray:
            return offsets[self.index[block] + 1] - offsets[self.index[block]] - int(not eos)

        return sums(lengths_of, len(self), self.store.folder)


class MixedDocuments:
    """The documents of several corpora, each in its own token store, which `WindowSpec.corpus` numbers from 0.

    The documents of all stores are numbered together: those of the first store, then those of the second, and so on.

    Attributes:
      parts: the documents of each corpus.
      factors: for each corpus the number by which the weights of its windows are multiplied (data/windows/rates.py).
      label: the name of this side of the split, for messages.
    """

    def __init__(self, parts: Sequence[Documents], factors: Sequence[float]):
        numbers = np.cumsum([0, *(len(part.store) for part in parts)]).tolist()
        self.parts = tuple(
            Documents(part.store, part.index, part.label, number)
            for part, number in zip(parts, numbers[:-1], strict=True)
        )
        self.factors = tuple(factors)
        self.label = parts[0].label

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def bytes_covered(self) -> float:
        """The share of the UTF-8 bytes of all documents that their tokens spell."""
        text_bytes = [int(part.store.text_bytes[part.index].sum()) for part in self.parts]
        return float(np.average([part.bytes_covered() for part in self.parts], weights=text_bytes))

    def in_text(self, numbers: np.ndarray) -> np.ndarray:
        """TokenStore.in_text of documents with these `numbers` among the documents of all stores, int64 [n]."""
        shares = np.empty(len(numbers))
        of_part = np.searchsorted([part.first_number for part in self.parts], numbers, side="right") - 1
        for k in np.unique(of_part).tolist():
            shares[of_part == k] = self.parts[k].in_text(numbers[of_part == k])
        return shares
