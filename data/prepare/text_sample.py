"""Random documents of both sides of the split of a corpus as text, before a tokenizer exists."""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from data.sources import Source
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters, FilterConfig
from data.sources.source import RawDocument, Skipped
from data.windows.split import (
    Split,
    Unit,
    check_fraction,
    check_two_units,
    is_below_fraction,
    is_heldout,
    label_digests,
    ranks_of,
    unit_of_texts,
)

_NONE = np.zeros(0, np.uint64)
_BATCH_DOCUMENTS, _BATCH_BYTES = 1024, 1 << 20  # documents whose sides are computed at once


@dataclasses.dataclass(frozen=True)
class TextSample:
    """Random documents of one side of a split.

    Attributes:
      texts: prompts and texts, in the order of the source.
      num_documents: how many documents `texts` is from.
      num_bytes: of `texts` in UTF-8.
      is_whole: whether these are all documents of that side.
    """

    texts: list[str]
    num_documents: int
    num_bytes: int
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Limits:
    """How large a sample is: random documents are added until it has one of these.

    The document that reaches `max_bytes` is whole. So the memory of a sample is `max_bytes` and one document.
    """

    max_bytes: int
    num_documents: int


def draw_samples(
    source: Source,
    split: Split,
    filters: FilterConfig,
    *,
    seed: int,
    train: Limits,
    heldout: Limits,
    has_heldout_text: bool,
) -> tuple[TextSample, TextSample]:
    """Returns samples of the documents that a run trains on, and of those that it holds out.

    The samples depend on the corpus, the filters, the split and the seed alone. Reads the corpus once, and before it as
    many documents as show how a run splits the corpus: few of a corpus of several files, all of a single file.

    split: as in a run's config. filters: as well, with those off that do not measure text: min_tokens, max_tokens and
    remove_duplicates. seed: any int. has_heldout_text: whether the source has data.heldout_path, which
    is then what is held out, and `split` is not read.

    Raises ConfigError as `split_documents` does, for a source that cannot be read, and for a side without text.
    """
    kept = _Kept(source, DocumentFilters(filters))
    side_of = _own_side if has_heldout_text else _split_rule(kept, split)
    samples = _Sample(train), _Sample(heldout)
    skipped, first = Skipped(), 0
    for batch in kept.batches(skipped):
        numbers = np.arange(first, first + len(batch), dtype=np.uint64)
        keys = mix64(mix64(numbers ^ np.uint64(seed_bits(seed, "tokenizer"))))
        for document, key, number, held in zip(batch, keys.tolist(), numbers.tolist(), side_of(batch), strict=True):
            samples[held].add(key, number, document)
        first += len(batch)
    for sample, side in zip(samples, ("to train a tokenizer on", "to hold out"), strict=True):
        if not sample.num_seen:
            unreadable = f"{len(skipped.files)} unreadable files and {skipped.lines} unreadable lines"
            raise ConfigError(
                f"{source.where} contains no document with text {side} (skipped {skipped.empty} empty documents, "
                f"{unreadable}; data.filters removed {kept.num_removed} documents): name another corpus"
            )
    return samples[0].drawn(), samples[1].drawn()


class _Kept:
    """The documents of a source that no filter removes.

    Attributes:
      num_removed: how many documents the filters removed in the last pass.
    """

    def __init__(self, source: Source, filters: DocumentFilters):
        self.cut = source.cut
        self.num_removed = 0
        self._source, self._filters = source, filters

    def batches(self, skipped: Skipped) -> Iterator[list[RawDocument]]:
        """Starts a pass over the documents, and yields them in lists of bounded size."""
        self.num_removed = 0
        return _batches(self._documents(skipped))

    def _documents(self, skipped: Skipped) -> Iterator[RawDocument]:
        for document in self._source.documents(skipped):
            if self._filters.removed_by_text(document):
                self.num_removed += 1
            else:
                yield document


class _Sample:
    """The documents with the smallest keys, as many as the limits allow."""

    def __init__(self, limits: Limits):
        self.num_seen = 0
        self._limits = limits
        self._heap: list[tuple[int, int, tuple[str, str], int]] = []  # the greatest key first
        self._num_bytes = 0

    def add(self, key: int, number: int, document: RawDocument) -> None:
        """Adds a document, and removes those that are not needed any more."""
        self.num_seen += 1
        if self._is_full() and key > -self._heap[0][0]:
            return
        texts = document.prompt, document.text
        size = sum(len(text.encode("utf-8")) for text in texts)
        heapq.heappush(self._heap, (-key, number, texts, size))
        self._num_bytes += size
        while self._is_full(without=1):
            self._num_bytes -= heapq.heappop(self._heap)[3]

    def _is_full(self, without: int = 0) -> bool:
        """Returns whether the documents but the last `without`, 0 or 1, reach a limit."""
        count = len(self._heap) - without
        if count <= 0:
            return False
        num_bytes = self._num_bytes - (self._heap[0][3] if without else 0)
        return num_bytes >= self._limits.max_bytes or count >= self._limits.num_documents

    def drawn(self) -> TextSample:
        """Returns the documents so far."""
        in_order = sorted(self._heap, key=lambda entry: entry[1])
        texts = [text for entry in in_order for text in entry[2] if text]
        return TextSample(texts, len(in_order), self._num_bytes, len(in_order) == self.num_seen)


def _own_side(batch: list[RawDocument]) -> list[bool]:
    return [document.is_heldout for document in batch]


def _split_rule(kept: _Kept, split: Split) -> Callable[[list[RawDocument]], list[bool]]:
    """Returns the function from documents to whether each is held out: that of `split_documents` for their store.

    Reads documents until the unit of the split is known, and both sides have a unit whatever documents follow.
    """
    check_fraction(split)
    units = {unit_of_texts(split, kept.cut, is_one_text=is_one) for is_one in (True, False)}
    extremes: dict[Unit, np.ndarray] = {}  # the least and the greatest rank, uint64 [2]
    texts: set[int] = set()  # digests of texts that documents are cut from: the first ones
    num_documents, unit = 0, unit_of_texts(split, kept.cut, is_one_text=True)
    for batch in kept.batches(Skipped()):
        num_documents += len(batch)
        if len(texts) < 2:
            texts |= {document.file_digest for document in batch}
            unit = unit_of_texts(split, kept.cut, is_one_text=len(texts) < 2)
        for candidate in units:
            ranks = np.concatenate([ranks_of(_unit_digests(batch, candidate), split), extremes.get(candidate, _NONE)])
            extremes[candidate] = np.array([ranks.min(), ranks.max()], np.uint64)
        if (len(texts) > 1 or len(units) == 1) and is_below_fraction(extremes[unit], split).tolist() == [True, False]:
            break
    if num_documents:
        check_two_units(unit, num_documents, *extremes[unit])

    def side_of(batch: list[RawDocument]) -> list[bool]:
        return is_heldout(ranks_of(_unit_digests(batch, unit), split), split, *extremes[unit]).tolist()

    return side_of


def _unit_digests(batch: list[RawDocument], unit: Unit) -> np.ndarray:
    """Returns a digest of each document's unit, as `data.windows.split.unit_digests` of a store of them."""
    if unit == "label":
        return label_digests([document.label for document in batch])
    if unit == "file":
        return np.array([document.file_digest for document in batch], np.uint64)
    return np.array([text_digest((doc.prompt or doc.text).encode("utf-8")) for doc in batch], np.uint64)


def _batches(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    """Yields the documents in lists of bounded size."""
    batch: list[RawDocument] = []
    num_characters = 0
    for document in documents:
        batch.append(document)
        num_characters += len(document.prompt) + len(document.text)
        if len(batch) == _BATCH_DOCUMENTS or num_characters >= _BATCH_BYTES:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
