"""Held-out batches: each window at most once, in a fixed random order that visits all documents before any one again.

The windows and the examples' keys depend on the held-out documents, the windows of the denoisers and the split's seed
alone: not on the batch, the devices, the seed of the run or what else is scored.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from contract.rng import GOLDEN, mix64, seed_bits
from contract.windows import BatchSpec, Windows
from data.windows.batches import Batches, DrawnExamples, example_weights
from data.windows.documents import Documents, MixedDocuments, members
from data.windows.order import Drawn, permute
from data.windows.windowing import WindowReader, make_reader

# windows, number of rows, groups of the examples int32 [E] -> batch
GroupTransform = Callable[[Windows, int, np.ndarray], Batch]


class ScoredExamples(NamedTuple):
    """The E examples of a held-out batch."""

    groups: np.ndarray  # int64 [E], the example's group: its number among all places for examples in the batch
    denoiser_ids: np.ndarray  # int32 [E]
    documents: np.ndarray  # int64 [E], the number in the stores of the document in which the example begins
    texts: np.ndarray  # int64 [E], the prompts and the other texts, encoded apart, whose first token is in the example
    # int32 [P], int64 [P, 2]: a denoiser and two documents, of which one of its examples begins in the first and
    # continues into the second
    shared_by: np.ndarray
    shared: np.ndarray


class Heldout:
    """The held-out batches of every evaluation, and what they contain.

    Attributes:
      batches: the batches by number, 0, ..., batches.end - 1.
      num_groups: the groups in a batch: the most examples in a row times the rows.
      num_windows: int64 [K], the windows of each denoiser.
      num_raw_tokens: int64 [K], the tokens of these windows.
      documents: int64 [D], the numbers in the stores of the documents of which a part is read, ascending.
      shares: float64 [K], the denoisers' shares of the raw tokens in training; their sum is 1. If the shares change
        during the run: the means of the first and the last.
    """

    def __init__(
        self,
        documents: Documents | MixedDocuments,
        spec: BatchSpec,
        transform: GroupTransform,
        *,
        batch_size: int,
        local_rows: Sequence[int],
        seed: int,
        num_windows: int,
    ):
        """
        Args:
          documents: the held-out documents of every corpus that `spec` names. Their order is the order of the visits.
          spec: the windows of each denoiser, and how many share a row, without a plan.
          transform: as for data.windows.batches.batches, with the group of each example as a further argument.
          batch_size, local_rows: as for data.windows.batches.batches.
          seed: of the choice of windows and of the examples' keys: the split's, not the run's.
          num_windows: the most windows to score, divided evenly among the denoisers, at least one for each; 0: all.

        Raises ConfigError where the documents do not fill a window.
        """
        assert spec.plan is None
        readers = [make_reader(documents.by_corpus[windows.corpus], windows) for windows in spec.windows]
        weights, ramps = example_weights(spec, readers, documents.factors)
        final = [ramp.weight if ramp else weight for weight, ramp in zip(weights, ramps, strict=True)]
        mean_lengths = [reader.mean_length for reader in readers]
        tokens = (np.multiply(of_windows, mean_lengths) for of_windows in (weights, final))
        self.shares = np.mean([of_tokens / of_tokens.sum() for of_tokens in tokens], axis=0)
        read = np.flatnonzero(self.shares > 0)
        most = max(num_windows // len(read), 1) if num_windows else None
        order = _visit_order([readers[k] for k in read], seed, most)
        self._reader_ids, total = order.reader_ids, len(order.indices)
        self.num_windows = np.bincount(read[order.reader_ids], minlength=len(readers))
        self._per_row, rows = spec.examples_per_row, np.asarray(local_rows, np.int64)

        def transform_groups(windows: Windows, num_rows: int) -> Batch:
            place = np.arange(len(windows.row_ids)) - np.searchsorted(windows.row_ids, windows.row_ids)
            row_of_batch = rows[windows.row_ids % len(rows)]
            return transform(windows, num_rows, (row_of_batch * self._most_in_row + place).astype(np.int32))

        self.batches = Batches(
            [readers[k] for k in read],
            read.tolist(),
            lambda numbers: Drawn(*(column[numbers] for column in order)),
            spec,
            transform_groups,
            seed=seed,
            batch_size=batch_size,
            local_rows=rows,
            total_windows=total,
            evenly_over=None,
        )
        drawn = self.batches.draw_windows(np.arange(total))
        self._most_in_row = int(np.bincount(drawn.windows // self._per_row).max())
        self.num_groups = batch_size * self._most_in_row
        self.num_raw_tokens = np.bincount(drawn.denoiser_ids, drawn.lengths, len(readers)).astype(np.int64)
        example = np.cumsum(drawn.slices.begins) - 1
        documents_read = self.batches.in_store(drawn.reader_ids[example], drawn.slices.documents)
        self.documents = np.unique(documents_read)
        self._documents_read = {k: np.unique(documents_read[drawn.denoiser_ids[example] == k]) for k in read.tolist()}

    def examples(self, n: int) -> ScoredExamples:
        """The examples of batch n, in all processes' rows."""
        drawn = self.batches.draw(n, 1)
        rows = drawn.windows // self._per_row
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        continues = ~drawn.slices.begins
        example = (np.cumsum(drawn.slices.begins) - 1)[continues]
        into = self.batches.in_store(drawn.reader_ids[example], drawn.slices.documents[continues])
        return ScoredExamples(
            groups=rows * self._most_in_row + place,
            denoiser_ids=drawn.denoiser_ids,
            documents=drawn.documents,
            texts=np.add.reduceat(self._texts_begun(drawn), np.flatnonzero(drawn.slices.begins)),
            shared_by=drawn.denoiser_ids[example],
            shared=np.stack([drawn.documents[example], into], axis=1),
        )

    def _texts_begun(self, drawn: DrawnExamples) -> np.ndarray:
        """int64 [n]: the prompts and the other texts that begin in each slice."""
        reader_ids = drawn.reader_ids[np.cumsum(drawn.slices.begins) - 1]
        count = np.empty(len(reader_ids), np.int64)
        for reader_id in np.unique(reader_ids).tolist():
            chosen = reader_ids == reader_id
            documents = self.batches.readers[reader_id].documents
            numbers, store = documents.index[drawn.slices.documents[chosen]], documents.store
            starts = drawn.slices.starts[chosen]
            begun = (starts == store.offsets[numbers]).astype(np.int64)
            prompt_lengths = store.prompt_lengths[numbers]
            after_prompt = store.offsets[numbers] + prompt_lengths
            ends = starts + drawn.slices.lengths[chosen]
            count[chosen] = begun + ((prompt_lengths > 0) & (starts <= after_prompt) & (after_prompt < ends))
        return count

    def documents_read(self, denoiser_ids: Sequence[int]) -> int:
        """Returns the number of documents of which at least one of these denoisers reads a part."""
        read = [self._documents_read[k] for k in denoiser_ids if k in self._documents_read]
        return len(np.unique(np.concatenate(read))) if read else 0

    def places(self, most: int, corpus: int = 0) -> np.ndarray:
        """The places in the store of one corpus, int64 [n], of the tokens in the windows of all batches.

        If the windows have more than `most` tokens: of the tokens in every second, third, ... window.
        """
        readers = self.batches.readers
        of_corpus = np.array([reader.spec.corpus == corpus for reader in readers])
        windows = np.flatnonzero(of_corpus[self._reader_ids])
        is_corpus = [windows_of.corpus == corpus for windows_of in self.batches.spec.windows]
        step = max(-(-int(self.num_raw_tokens[is_corpus].sum()) // most), 1)
        starts, lengths = self.batches.draw_windows(windows[::step]).slices[:2]
        slices, nth = members(lengths)
        return starts[slices] + nth


def _visit_order(readers: Sequence[WindowReader], seed: int, most: int | None) -> Drawn:
    """All windows of an evaluation: those of one reader after the other, each reader's in the order of `visits`."""
    visited = [visits(reader, seed, len(reader) if most is None else most) for reader in readers]
    nth = np.concatenate([np.arange(len(indices)) for indices in visited])
    reader_ids = np.repeat(np.arange(len(readers), dtype=np.int32), list(map(len, visited)))
    return Drawn(reader_ids, np.zeros(len(nth), np.int64), np.concatenate(visited), nth)


def visits(reader: WindowReader, seed: int, most: int) -> np.ndarray:
    """The first `most` windows, int64 [n], each once, of rounds over the documents.

    In every round each document contributes one of its windows, in a random order of its own. A window with text of
    several documents is read for the first of them. So n documents or fewer are all read by n windows, and long
    documents do not displace short ones.
    """
    enough, num_documents = min(most, len(reader)), min(most, len(reader.documents))
    found = _windows_of_rounds(reader, seed, num_documents, 1)
    while len(found) < enough:  # some documents share a window: a round needs more of them, or there are more rounds
        num_rounds = 1 if num_documents < len(reader.documents) else len(reader)
        num_documents = min(4 * num_documents, len(reader.documents))
        found = _windows_of_rounds(reader, seed, num_documents, num_rounds)
    return found[:most]


def _windows_of_rounds(reader: WindowReader, seed: int, num_documents: int, num_rounds: int) -> np.ndarray:
    """The windows, each once, of the first rounds over the first documents."""
    first, counts = reader.windows_of(np.arange(num_documents))
    document, nth = members(np.minimum(counts, num_rounds))
    keys = mix64(np.uint64(seed_bits(seed, "visits")) + GOLDEN * document.astype(np.uint64))
    windows = first[document] + permute(nth, counts[document], keys)
    in_rounds = windows[np.argsort(nth, kind="stable")]
    return in_rounds[np.sort(np.unique(in_rounds, return_index=True)[1])]
