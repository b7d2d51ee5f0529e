"""Windows of held-out text: the same documents and places for every run over one corpus and tokenizer."""

from typing import NamedTuple

import numpy as np

from contract import rng
from contract.errors import ConfigError
from data.windows.documents import Documents, MixedDocuments

_SEED = rng.seed_bits(0, "probe")  # the same for every run, so that all runs are scored on the same text
_OFFSET, _CHOICE, _SPAN = range(3)  # tags of keys


class Window(NamedTuple):
    """A run of tokens of a document."""

    document: int  # the number of the document among the documents that are used
    tokens: np.ndarray  # int32 [n], raw text
    key: np.ndarray  # uint64 [1], the window's random key

    def span(self, length: int) -> tuple[int, int]:
        """Start and end of `length` tokens at a random place with at least one token before and one after them.

        The place is a function of the window and of `length` alone. The window has at least `length` + 2 tokens.
        """
        start = int(rng.integers(rng.fold_in(self.key, _SPAN + length), 1, len(self.tokens) - length - 1)[0])
        return start, start + length


def heldout_windows(
    documents: Documents | MixedDocuments, *, count: int | None, places: int, length: int, shortest: int
) -> list[Window]:
    """Returns windows of the first `count` documents in a fixed random order; of all documents if `count` is None.

    Order and places are functions of the documents' contents alone, not of a run's seed, objective or lengths. A window
    never contains the first token of a document, to which SentencePiece adds a space that is not in the text.

    Args:
      documents: the held-out documents, of all corpora. Those with fewer than `shortest` + 1 tokens are excluded.
      places: the most windows of a document, at least 1. They do not overlap.
      length: tokens in a window, `shortest` or more. A shorter document is one window.
      shortest: the fewest tokens in a window, at least 1.

    Raises ConfigError if no document is long enough.
    """
    digests = np.concatenate([part.store.digests[part.index] for part in documents.by_corpus])
    first = np.cumsum([0, *map(len, documents.by_corpus)])  # the number of the first document of each part
    keys = rng.mix64(digests ^ np.uint64(_SEED))
    windows: list[Window] = []
    num_documents = 0
    for i in np.argsort(keys, kind="stable"):
        part = int(np.searchsorted(first, i, side="right")) - 1
        tokens = documents.by_corpus[part].tokens(int(i - first[part]))[1:]
        if len(tokens) < shortest:
            continue
        windows += _windows_of(tokens, keys[i : i + 1], num_documents, places, length)
        num_documents += 1
        if num_documents == count:
            break
    if not windows:
        raise ConfigError(
            f"none of the {len(documents)} held-out documents has {shortest + 1} tokens, the fewest that this probe "
            "can use: add longer documents to data.path, or raise data.heldout_fraction"
        )
    return windows


def _windows_of(tokens: np.ndarray, key: np.ndarray, document: int, places: int, length: int) -> list[Window]:
    """The windows of one document. key: uint64 [1], the document's."""
    fitting = len(tokens) // length
    if not fitting:
        return [Window(document, tokens.astype(np.int32), rng.fold_in(key, _CHOICE))]
    # A row of windows without gaps at a random offset, of which `places` are chosen.
    offset = int(rng.integers(rng.fold_in(key, _OFFSET), 0, len(tokens) - fitting * length)[0])
    chosen = rng.choose(rng.fold_in(key, _CHOICE), np.ones((1, fitting), bool), np.array([min(places, fitting)]))[0]
    starts = offset + chosen * length
    keys = rng.bits_at(np.repeat(key, len(starts)), starts)
    return [
        Window(document, tokens[start : start + length].astype(np.int32), keys[k : k + 1])
        for k, start in enumerate(starts.tolist())
    ]
