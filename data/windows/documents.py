"""Documents of token stores, such as one side of the train/held-out split, in the order in which they are read."""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from contract.errors import ConfigError
from contract.rng import parts
from data.store.store import TokenStore

RateKind = Literal["weight", "num_examples"]  # the values of data.rates


class Documents:
    """A selection of the documents of a token store, in a given order: the text of one corpus.

    Attributes:
      store: the token store.
      index: int64 [n], the number in the store of each document.
      label: the name of this side of the split, for messages.
      first_number: the number of the store's first document where the documents of several stores are numbered
        together (MixedDocuments); 0 for one store.
    """

    factors = (1.0,)  # as of MixedDocuments

    def __init__(self, store: TokenStore, index: np.ndarray, label: str, first_number: int = 0):
        self.store, self.index, self.label, self.first_number = store, index, label, first_number
        self._ends: dict[bool, np.ndarray] = {}  # `ends` by its argument: most runs read one of the two

    def __len__(self) -> int:
        return len(self.index)

    @property
    def by_corpus(self) -> "tuple[Documents, ...]":
        """The documents of each corpus: these."""
        return (self,)

    def subset(self, is_chosen: np.ndarray) -> "Documents":
        """The documents where `is_chosen`, bool [number of documents], is True, in the same order."""
        return Documents(self.store, self.index[is_chosen], self.label, self.first_number)

    def tokens(self, i: int) -> np.ndarray:
        """The tokens of document i without EOS, unsigned integers [length]."""
        d = self.index[i]
        return self.store.tokens[self.store.offsets[d] : self.store.offsets[d + 1] - 1]

    def name(self, i: int) -> str:
        """The file or dataset that document i is from."""
        return self.store.names[self.store.name_ids[self.index[i]]]

    def lengths(self, eos: bool, numbers: np.ndarray | slice = slice(None)) -> np.ndarray:
        """int64 [n]: the tokens of each document, or of those with `numbers`, int [n], with or without their EOS."""
        d = self.index[numbers]
        return self.store.offsets[d + 1] - self.store.offsets[d] - (not eos)

    def num_tokens(self, eos: bool) -> int:
        """The number of tokens of all documents, with or without their EOS tokens."""
        return self._num_tokens - (0 if eos else len(self))

    @functools.cached_property
    def _num_tokens(self) -> int:
        return sum(int(self.lengths(True, numbers).sum()) for numbers in parts(len(self)))

    def ends(self, eos: bool) -> np.ndarray:
        """int64 [n]: where each document ends in the concatenated documents, with or without their EOS tokens."""
        if eos not in self._ends:
            self._ends[eos] = np.cumsum(self.lengths(eos))
        return self._ends[eos]

    def bytes_covered(self) -> float:
        """The share of the UTF-8 bytes of the documents that their tokens spell, as TokenStore.bytes_covered."""
        return self.store.bytes_covered(self.index)

    def in_text(self, numbers: np.ndarray) -> np.ndarray:
        """TokenStore.in_text of documents with these `numbers` among the documents of all stores, int64 [n]."""
        return self.store.in_text(numbers - self.first_number)


class MixedDocuments:
    """The documents of several corpora, each in its own token store, which `WindowSpec.corpus` numbers from 0.

    The documents of all stores are numbered together: those of the first store, then those of the second, and so on.

    Attributes:
      by_corpus: the documents of each corpus.
      factors: for each corpus the number by which the weights of its windows are multiplied (`rate_factors`).
      label: the name of this side of the split, for messages.
    """

    def __init__(self, parts: Sequence[Documents], factors: Sequence[float]):
        numbers = np.cumsum([0, *(len(part.store) for part in parts)]).tolist()
        self.by_corpus = tuple(
            Documents(part.store, part.index, part.label, number)
            for part, number in zip(parts, numbers[:-1], strict=True)
        )
        self.factors = tuple(factors)
        self.label = parts[0].label

    def __len__(self) -> int:
        return sum(map(len, self.by_corpus))

    def bytes_covered(self) -> float:
        """The share of the UTF-8 bytes of all documents that their tokens spell."""
        text_bytes = [int(part.store.text_bytes[part.index].sum()) for part in self.by_corpus]
        return float(np.average([part.bytes_covered() for part in self.by_corpus], weights=text_bytes))

    def in_text(self, numbers: np.ndarray) -> np.ndarray:
        """TokenStore.in_text of documents with these `numbers` among the documents of all stores, int64 [n]."""
        shares = np.empty(len(numbers))
        of_part = np.searchsorted([part.first_number for part in self.by_corpus], numbers, side="right") - 1
        for k in np.unique(of_part).tolist():
            shares[of_part == k] = self.by_corpus[k].in_text(numbers[of_part == k])
        return shares


def rate_factors(kind: RateKind, counts: Sequence[int], *, maximum: int, temperature: float) -> tuple[float, ...]:
    """Returns the number by which the weight of each corpus in `data.sources` is multiplied.

    "weight": 1. "num_examples": min(n, K)^(1/T) for a corpus of n training documents: examples-proportional mixing
    with an artificial limit and temperature-scaled mixing of Raffel et al. 2020, section 3.5.2, and seqio's
    `rate_num_examples`. The factors are divided by the largest, so that no power overflows.

    Args:
      kind: data.rates.
      counts: the number of training documents of each corpus, at least 1.
      maximum: K, data.rates_maximum; 0 for no limit.
      temperature: T, data.rates_temperature, above 0.
    """
    if kind == "weight":
        return (1.0,) * len(counts)
    logs = [math.log(min(count, maximum) if maximum else count) / temperature for count in counts]
    return tuple(math.exp(log - max(logs)) for log in logs)


def rates(weights: Sequence[float], factors: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Returns the rate of each corpus, its share of the examples or of their raw tokens, by name; they sum to 1.

    Raises ConfigError for a rate that is 0 as a number.
    """
    products = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    found = {name: product / sum(products) for name, product in zip(names, products, strict=True)}
    for name, rate in found.items():
        if not rate > 0:
            raise ConfigError(
                f"corpus {name!r} has a rate of 0, and is never read: raise data.sources.{name}.weight or "
                "data.rates_temperature, or remove it from data.sources"
            )
    return found


def begins_of(ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns where each of `numbers`, int64 [n], begins, for parts that end at `ends`, int64 [D], each."""
    return np.where(numbers > 0, ends[numbers - 1], 0)


def members(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group of each member of groups of so many members, and its number in its group: int64 [total] each.

    counts: int64 [number of groups]. Members of a group are adjacent, and groups are in order.
    """
    groups = np.repeat(np.arange(len(counts)), counts)
    return groups, np.arange(len(groups)) - (np.cumsum(counts) - counts)[groups]
