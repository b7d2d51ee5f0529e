"""The windows of a WindowSpec over documents, with random access."""

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from contract.windows import WindowSpec
from data.windows.cuts import CUTS, Slices
from data.windows.documents import Documents
from data.windows.eligible import eligible

# Keeps the draws of other windows independent of the objective's draws, which use the same keys.
_OTHERS = np.uint64(seed_bits(0, "others"))

_LONG = 200  # tokens; copying such slices one by one takes less time than an index of each token


class WindowReader:
    """All windows of a spec over some documents, numbered from 0 in every epoch. Every token is in exactly one window.

    Reading a window takes two binary searches, for any number of documents. A reader is thread-safe.

    Attributes:
      spec: the spec.
      documents: the documents that are eligible for the spec (data/windows/eligible.py).
      tokens: the tokens of the documents' store.
      longest: the length of the longest possible example.
      mean_length: the mean number of tokens in a window.
      mean_documents: the mean number of documents in a window of whole documents; 1 for other windows.
      cut: where the documents are cut.
    """

    def __init__(self, documents: Documents, spec: WindowSpec, seed: int | None = None):
        """
        seed: any int. Every epoch then cuts the documents elsewhere (data/windows/cuts.py); None: all epochs are equal.

        Raises ConfigError where the documents do not fill one window of "join" or "pack", and as `eligible` does.
        """
        self.spec = spec
        self.documents, _ = eligible(documents, spec)
        self.tokens = documents.store.tokens
        self.cut = CUTS[spec.documents](self.documents, spec, seed)
        num_tokens = int(self.cut.ends[-1])
        if "others" in spec.extra_columns:
            self._check_others()
        if spec.documents in ("join", "pack") and num_tokens < spec.raw_length:
            raise ConfigError(
                f"the {documents.label} documents have {num_tokens} tokens, fewer than one window of "
                f"{spec.raw_length} for {spec.name!r}: set a smaller data.inputs_length, a data.path with more "
                "text, or another data.heldout_fraction"
            )
        is_whole = spec.documents == "whole"
        self.longest = self.cut.longest_document() if is_whole else spec.raw_length
        self.mean_length = num_tokens / len(self)
        self.mean_documents = len(self.documents) / len(self) if is_whole else 1.0

    def __len__(self) -> int:
        return len(self.cut)

    def slices(self, epochs: np.ndarray, indices: np.ndarray) -> Slices:
        """The slices of windows `indices`, int64 [w], of `epochs`, int64 [w]; Slices.windows indexes `indices`."""
        return self.cut.slices(epochs, indices)

    def others(self, documents: np.ndarray, keys: np.ndarray) -> Slices:
        """For each of `documents`, int64 [n], a window of another document, drawn by its key in `keys`, uint64 [n].

        All windows of all other documents are equally likely, so their lengths have the distribution of the reader's
        windows. Deviation: BERT draws the document first, which favors windows of short documents.

        The spec must request the column "others".
        """
        first, count = self.cut.windows_of(documents)
        draws = mix64(keys ^ _OTHERS)
        drawn = (draws % (len(self) - count).astype(np.uint64)).astype(np.int64)
        # Any function of the key is as good as an epoch: the window is cut where some epoch cuts it.
        epochs = (mix64(draws) >> np.uint64(1)).astype(np.int64)
        return self.cut.slices(epochs, drawn + np.where(drawn >= first, count, 0))

    def _check_others(self) -> None:
        if self.spec.documents != "split":
            raise ValueError(
                f"{self.spec.name!r} requests 'others', which needs documents='split', not {self.spec.documents!r}"
            )
        if len(self.documents) < 2:
            raise ConfigError(
                f"{self.spec.name!r} pairs texts of different documents, and there is one {self.documents.label} "
                "document: add documents to data.path, or set data.document_per='paragraph' or another "
                "data.heldout_fraction"
            )


def gather(tokens: np.ndarray, slices: Slices, width: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of `slices` of a store's `tokens`: int32 [E, width], padded with pad_id, and lengths, int32 [E]."""
    lengths = np.add.reduceat(slices.lengths, np.flatnonzero(slices.begins)).astype(np.int32)
    padded = np.full((len(lengths), width), pad_id, np.int32)
    if slices.lengths.mean() >= _LONG:
        _copy_slices(tokens, slices, padded)
    else:
        padded[np.arange(width, dtype=np.int32) < lengths[:, None]] = tokens.take(_index(slices))
    return padded, lengths


def _copy_slices(tokens: np.ndarray, slices: Slices, padded: np.ndarray) -> None:
    """Copies the slices, one by one, to the rows of their examples."""
    ends, example = np.cumsum(slices.lengths), np.cumsum(slices.begins) - 1
    begins = ends - slices.lengths
    places = example * padded.shape[1] + begins - begins[slices.begins][example]
    flat = padded.ravel()
    for start, length, place in zip(slices.starts.tolist(), slices.lengths.tolist(), places.tolist(), strict=True):
        flat[place : place + length] = tokens[start : start + length]


def _index(slices: Slices) -> np.ndarray:
    """int64 [n]: the place in the store of each token of the slices."""
    ends = np.cumsum(slices.lengths)
    index = np.ones(int(ends[-1]), np.int64)  # the step from token to token; the sum of the steps is the index
    index[0] = slices.starts[0]
    index[ends[:-1]] += slices.starts[1:] - slices.starts[:-1] - slices.lengths[:-1]
    np.cumsum(index, out=index)
    return index
