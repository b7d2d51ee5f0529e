"""What some objectives read of an example beside its tokens: the optional columns of objectives.batch.Windows."""

from collections.abc import Sequence

import numpy as np

from data.windows import WindowReader, gather
from objectives.batch import Windows


class Columns:
    """Adds to the windows of a batch what their specs read. Holds nothing that changes."""

    def __init__(self, readers: Sequence[WindowReader], width: int, pad_id: int):
        """readers: by source; width: tokens of a row of Windows.tokens."""
        self._readers = readers
        self._width = width
        self._pad_id = pad_id

    def add(self, windows: Windows, documents: np.ndarray) -> Windows:
        """The windows with their columns. documents: int64 [E], that each example is of."""
        if others := self._sources("others"):
            tokens = np.full((len(documents), self._width), self._pad_id, np.int32)
            lengths = np.zeros(len(documents), np.int32)
            for source in others:
                chosen = np.flatnonzero(windows.source == source)
                if len(chosen):
                    reader = self._readers[source]
                    segments = reader.others(documents[chosen], windows.keys[chosen])
                    tokens[chosen], lengths[chosen] = gather(reader.tokens, segments, self._width, self._pad_id)
            windows = windows._replace(others_tokens=tokens, others_lengths=lengths)
        return windows

    def _sources(self, column: str) -> list[int]:
        return [source for source, reader in enumerate(self._readers) if column in reader.spec.reads]
