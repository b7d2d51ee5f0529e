"""What some objectives read of an example beside its tokens: the optional columns of objectives.batch.Windows."""

from collections.abc import Sequence

import numpy as np

from contract.windows import Windows
from data.eligible import classes_of
from data.windows import WindowReader, gather


class Columns:
    """Adds to the windows of a batch what their specs read. Holds nothing that changes."""

    def __init__(self, readers: Sequence[WindowReader], width: int, pad_id: int):
        """readers: by source; width: tokens of a row of Windows.tokens."""
        self._readers = readers
        self._width = width
        self._pad_id = pad_id
        self._of_document: dict[str, dict[int, np.ndarray]] = {"prompt_lengths": {}, "labels": {}}
        for source, reader in enumerate(readers):
            documents, spec = reader.documents, reader.spec
            if "prompt_lengths" in spec.extra_columns:
                self._of_document["prompt_lengths"][source] = documents.store.prompt_lengths[documents.index]
            if "labels" in spec.extra_columns:
                self._of_document["labels"][source] = classes_of(documents, spec)

    def add(self, windows: Windows, documents: np.ndarray) -> Windows:
        """The windows with their columns. documents: int64 [E], that each example is of, as its reader numbers them."""
        if any("others" in reader.spec.extra_columns for reader in self._readers):
            windows = self._add_others(windows, documents)
        for column, of_document in self._of_document.items():
            if of_document:
                values = np.zeros(len(documents), np.int32)
                for source, value in of_document.items():
                    chosen = np.flatnonzero(windows.denoiser_ids == source)
                    values[chosen] = value[documents[chosen]]
                windows = windows._replace(**{column: values})
        return windows

    def _add_others(self, windows: Windows, documents: np.ndarray) -> Windows:
        tokens = np.full((len(documents), self._width), self._pad_id, np.int32)
        lengths = np.zeros(len(documents), np.int32)
        for source, reader in enumerate(self._readers):
            chosen = np.flatnonzero(windows.denoiser_ids == source)
            if len(chosen) and "others" in reader.spec.extra_columns:
                segments = reader.others(documents[chosen], windows.keys[chosen])
                tokens[chosen], lengths[chosen] = gather(reader.tokens, segments, self._width, self._pad_id)
        return windows._replace(others_tokens=tokens, others_lengths=lengths)
