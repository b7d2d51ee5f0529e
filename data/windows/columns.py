"""The optional columns of `Windows`, such as windows of other documents, which WindowSpec.extra_columns requests."""

from collections.abc import Sequence

import numpy as np

from contract.windows import Windows
from data.windows.eligible import ColumnOf, classes_of, prompt_lengths_of
from data.windows.windows import WindowReader, gather


class Columns:
    """Fills the optional columns of a batch's windows. Has no mutable state."""

    def __init__(self, readers: Sequence[WindowReader], width: int, pad_id: int):
        """width: the width of Windows.tokens; pad_id: the token id after the end of an example."""
        self._readers = readers
        self._width = width
        self._pad_id = pad_id
        self._of_documents: dict[str, dict[int, ColumnOf]] = {"prompt_lengths": {}, "labels": {}}
        for reader_id, reader in enumerate(readers):
            if "prompt_lengths" in reader.spec.extra_columns:
                self._of_documents["prompt_lengths"][reader_id] = prompt_lengths_of(reader.documents)
            if "labels" in reader.spec.extra_columns:
                self._of_documents["labels"][reader_id] = classes_of(reader.documents, reader.spec)

    def add(self, windows: Windows, reader_ids: np.ndarray, documents: np.ndarray, starts: np.ndarray) -> Windows:
        """Returns the windows with their optional columns filled.

        Args:
          windows: E examples.
          reader_ids: int [E], the reader that each example is from.
          documents: int64 [E], the document that each example is from, an index into its reader's documents.
          starts: int64 [E], the place of each example's first token in the store.
        """
        if any("others" in reader.spec.extra_columns for reader in self._readers):
            windows = self._add_others(windows, reader_ids, documents)
        for column, of_readers in self._of_documents.items():
            if of_readers:
                values = np.zeros(len(documents), np.int32)
                for reader_id, of_documents in of_readers.items():
                    chosen = np.flatnonzero(reader_ids == reader_id)
                    values[chosen] = of_documents(documents[chosen])
                windows = windows._replace(**{column: values})
        if any("begins_document" in reader.spec.extra_columns for reader in self._readers):
            windows = self._add_document_ends(windows, reader_ids, documents, starts)
        return windows

    def _add_document_ends(
        self, windows: Windows, reader_ids: np.ndarray, documents: np.ndarray, starts: np.ndarray
    ) -> Windows:
        begins, ends = np.zeros((2, len(documents)), bool)
        for reader_id, reader in enumerate(self._readers):
            chosen, store = np.flatnonzero(reader_ids == reader_id), reader.documents.store
            document = reader.documents.index[documents[chosen]]
            begins[chosen] = starts[chosen] == store.offsets[document]
            end = store.offsets[document + 1] - (not reader.spec.eos)
            ends[chosen] = starts[chosen] + windows.lengths[chosen] == end
        return windows._replace(begins_document=begins, ends_document=ends)

    def _add_others(self, windows: Windows, reader_ids: np.ndarray, documents: np.ndarray) -> Windows:
        tokens = np.full((len(documents), self._width), self._pad_id, np.int32)
        lengths = np.zeros(len(documents), np.int32)
        for reader_id, reader in enumerate(self._readers):
            chosen = np.flatnonzero(reader_ids == reader_id)
            if len(chosen) and "others" in reader.spec.extra_columns:
                slices = reader.others(documents[chosen], windows.keys[chosen])
                tokens[chosen], lengths[chosen] = gather(reader.tokens, slices, self._width, self._pad_id)
        return windows._replace(others_tokens=tokens, others_lengths=lengths)
