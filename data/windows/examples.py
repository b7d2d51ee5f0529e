"""The examples of windows by the windows' numbers: draws the windows in an order, and reads them from the store."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from contract.rng import example_keys
from contract.windows import BatchSpec, Windows
from data.windows.document_filter import classes_of
from data.windows.order import Drawn
from data.windows.windowing import Slices, WindowReader, gather, slices_of_groups


class Order(Protocol):
    """Which window of which reader has a number."""

    def draw(self, numbers: np.ndarray, /) -> Drawn:
        """The windows with these numbers, int64 [n]."""


class DrawnExamples(NamedTuple):
    """The E examples in some windows, without their text. The examples are in the order of the windows."""

    slices: Slices  # of the windows; Slices.documents are indices into the documents of the example's reader
    windows: np.ndarray  # int [E], the example's window, an index into the requested numbers
    pieces: np.ndarray  # int [E], which of its window's examples it is
    lengths: np.ndarray  # int64 [E], tokens
    reader_ids: np.ndarray  # int32 [E]
    denoiser_ids: np.ndarray  # int32 [E]
    documents: np.ndarray  # int64 [E], the number in the stores of the document in which the example begins
    key_numbers: np.ndarray  # int64 [E], as in Drawn


class ExampleReader:
    """Reads the examples of windows, without mutable state.

    Attributes:
      readers: the readers, of one token store for each corpus.
      spec: what the rows of a batch are made from.
    """

    def __init__(
        self, readers: Sequence[WindowReader], denoiser_ids: Sequence[int], order: Order, spec: BatchSpec, *, seed: int
    ):
        """
        Args:
          readers: the readers that `order` draws from.
          denoiser_ids: the denoiser of each reader.
          order: the windows by number.
          spec: the windows of each denoiser, and how many share a row.
          seed: any int, which determines the examples' keys.
        """
        self.readers = readers
        self.spec = spec
        self._denoiser_ids = np.asarray(denoiser_ids, np.int32)
        self._order = order
        self._seed = seed
        self._corpora = np.array([reader.spec.corpus for reader in readers])
        self._width = max(reader.longest for reader in readers)
        self._columns = tuple(dict.fromkeys(name for reader in readers for name in reader.spec.extra_columns))
        self._classes = {  # by reader
            k: classes_of(reader.documents, reader.spec)
            for k, reader in enumerate(readers)
            if "labels" in reader.spec.extra_columns
        }

    @property
    def epoch_tokens(self) -> np.ndarray:
        """int64 [number of denoisers]: the raw tokens of all windows of each denoiser; 0 for one without a reader."""
        tokens = np.zeros(len(self.spec.windows), np.int64)
        # Readers of one denoiser with windows of different lengths read the same text.
        tokens[self._denoiser_ids] = [int(reader.cut.ends[-1]) for reader in self.readers]
        return tokens

    def draw(self, numbers: np.ndarray) -> DrawnExamples:
        """The examples in windows `numbers`, int64 [w], at least one. No text is read."""
        drawn = self._order.draw(numbers)
        slices = slices_of_groups(
            drawn.reader_ids, lambda k, chosen: self.readers[k].slices(drawn.epochs[chosen], drawn.indices[chosen])
        )
        first_slice = np.flatnonzero(slices.begins)
        windows = slices.windows[first_slice]
        reader_ids = drawn.reader_ids[windows]
        return DrawnExamples(
            slices=slices,
            windows=windows,
            pieces=np.arange(len(windows)) - np.searchsorted(windows, windows, side="left"),
            lengths=np.add.reduceat(slices.lengths, first_slice),
            reader_ids=reader_ids,
            denoiser_ids=self._denoiser_ids[reader_ids],
            documents=self.in_store(reader_ids, slices.documents[first_slice]),
            key_numbers=drawn.key_numbers[windows],
        )

    def read(self, numbers: np.ndarray, rows: np.ndarray) -> Windows:
        """The examples in windows `numbers`, int64 [w], at least one. rows: int [w], each window's row."""
        examples = self.draw(numbers)
        tokens, lengths = self._gather(examples)
        plan = self.spec.plan
        windows = Windows(
            tokens=tokens,
            lengths=lengths,
            row_ids=rows[examples.windows].astype(np.int32),
            keys=example_keys(self._seed, examples.key_numbers, examples.pieces),
            denoiser_ids=examples.denoiser_ids,
            variant_ids=None
            if plan is None
            else plan.variant_ids.ravel()[numbers[examples.windows] % plan.variant_ids.size],
        )
        return windows._replace(**self._extra_columns(windows, examples)) if self._columns else windows

    def _extra_columns(self, windows: Windows, examples: DrawnExamples) -> dict[str, np.ndarray]:
        """The columns of Windows that readers request (WindowSpec.extra_columns); 0 for other readers' examples."""
        count = len(windows.lengths)
        columns = {
            name: np.zeros(count, bool if name in ("begins_document", "ends_document") else np.int32)
            for name in self._columns
            if name != "others"
        }
        if "others" in self._columns:
            columns["others_tokens"] = np.full((count, self._width), self.spec.pad_id, np.int32)
            columns["others_lengths"] = np.zeros(count, np.int32)
        starts, _, _, begins, documents = examples.slices
        starts, documents = starts[begins], documents[begins]
        for reader_id, reader in enumerate(self.readers):
            chosen, requested = np.flatnonzero(examples.reader_ids == reader_id), reader.spec.extra_columns
            store, number = reader.documents.store, reader.documents.index[documents[chosen]]
            if "others" in requested and len(chosen):
                slices = reader.others(documents[chosen], windows.keys[chosen])
                others = gather(reader.tokens, slices, self._width, self.spec.pad_id)
                columns["others_tokens"][chosen], columns["others_lengths"][chosen] = others
            if "prompt_lengths" in requested:
                columns["prompt_lengths"][chosen] = store.prompt_lengths[number]
            if "labels" in requested:
                columns["labels"][chosen] = self._classes[reader_id][documents[chosen]]
            if "begins_document" in requested:
                columns["begins_document"][chosen] = starts[chosen] == store.offsets[number]
            if "ends_document" in requested:
                end = store.offsets[number + 1] - (not reader.spec.eos)
                columns["ends_document"][chosen] = starts[chosen] + windows.lengths[chosen] == end
        return columns

    def _gather(self, examples: DrawnExamples) -> tuple[np.ndarray, np.ndarray]:
        """The examples' tokens, int32 [E, W], padded, and their lengths, int32 [E]."""
        corpora = self._corpora[examples.reader_ids]
        if (corpora == corpora[0]).all():
            store = self.readers[int(examples.reader_ids[0])].tokens
            return gather(store, examples.slices, self._width, self.spec.pad_id)
        tokens = np.empty((len(corpora), self._width), np.int32)
        of_slice = corpora[np.cumsum(examples.slices.begins) - 1]
        for corpus in np.unique(corpora).tolist():
            slices = Slices(*(column[of_slice == corpus] for column in examples.slices))
            chosen = np.flatnonzero(corpora == corpus)
            store = self.readers[int(examples.reader_ids[chosen[0]])].tokens
            tokens[chosen], _ = gather(store, slices, self._width, self.spec.pad_id)
        return tokens, examples.lengths.astype(np.int32)

    def in_store(self, reader_ids: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """The numbers in the stores, int64 [n], of `documents`, int64 [n], of readers int [n].

        The documents of all stores are numbered together (data/windows/documents.py, MixedDocuments).
        """
        numbers = np.empty(len(documents), np.int64)
        for reader_id in np.unique(reader_ids).tolist():
            chosen = reader_ids == reader_id
            of_reader = self.readers[reader_id].documents
            numbers[chosen] = of_reader.first_number + of_reader.index[documents[chosen]]
        return numbers
