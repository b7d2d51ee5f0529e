"""Batches: which windows batch n holds, reading them, and handing them to the objective's transform. Built on grain."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence

import grain
import numpy as np

from contract.batch import Batch
from contract.rng import example_keys
from contract.windows import RowPlan, Windows, WindowSpec
from data.columns import Columns
from data.documents import Documents
from data.eligible import eligible
from data.order import DrawOrder, PlannedOrder
from data.windows import Segments, WindowReader, gather

Transform = Callable[[Windows, int], Batch]

_EXAMPLES = 512  # made at once, where batches are smaller: many, but few enough for the processor's caches


def batches(
    documents: Documents,
    specs: Sequence[WindowSpec],
    transform: Transform,
    *,
    batch_size: int,
    examples_per_row: int,
    seed: int,
    shuffle: bool,
    rows: Sequence[int],
    pad_id: int,
    plan: RowPlan | None = None,
) -> "Batches":
    """Endless batches, of which element n is this process's rows of batch n.

    Element n is a function of the arguments and n alone: example i of the run stands in row i // examples_per_row of
    all the rows of all the batches, and data/order.py says which window it is. So neither the number of processes nor
    of threads changes what a row holds. Each spec goes through its own windows once an epoch, for ever; where rows are
    planned each spec and length does, so that text may come up again at another length before all of it has come up.

    Args:
      documents: the documents to read.
      specs: the objective's windows; one of weight 0 is never drawn. Windows.denoiser_ids is an index into them.
      transform: makes the batch from the windows and the number of rows, each row from its own windows alone; called
        from several threads, by `loader` for several batches at once.
      batch_size: rows of the global batch.
      examples_per_row: windows in a row.
      seed: any int. It decides the order and the examples' keys.
      shuffle: a new order each epoch; else the documents' own, every time the same, and where weights change, all the
        time the mean of the first and the last.
      rows: this process's rows of the global batch, ascending; they need not be neighbours.
      pad_id: fills tokens after the end of an example.
      plan: which specs' windows stand in a row, and how long they are there, in place of the specs' own weights and
        lengths. None: windows are drawn by weight.

    Raises ConfigError for bad weights, and where the documents do not fill a window.
    """
    rows = np.asarray(rows, np.int64)
    if not rows.size or rows[0] < 0 or rows[-1] >= batch_size or (np.diff(rows) <= 0).any():
        raise ValueError(f"rows={rows.tolist()} must be ascending rows of a batch of {batch_size}")
    if plan is None:
        readers = [WindowReader(documents, spec) for spec in specs]
        weights, ramps = [spec.weight for spec in specs], [spec.ramp for spec in specs]
        if not shuffle:  # held-out batches are compared between steps
            weights, ramps = [spec.mean_weight for spec in specs], ()
        order = DrawOrder(list(map(len, readers)), weights, seed=seed, shuffle=shuffle, ramps=ramps)
    else:
        expected = np.stack([plan.denoiser_ids.ravel(), plan.raw_lengths.ravel()], axis=1)
        distinct, cycle = np.unique(expected, axis=0, return_inverse=True)
        windows = [dataclasses.replace(specs[source], raw_length=length) for source, length in distinct.tolist()]
        readers = [WindowReader(documents, spec) for spec in windows]
        order = PlannedOrder(list(map(len, readers)), cycle.ravel(), seed=seed, shuffle=shuffle)
    return Batches(readers, order, transform, batch_size, examples_per_row, rows, seed, pad_id, plan)


def excluded(documents: Documents, specs: Sequence[WindowSpec]) -> list[str]:
    """For people: which of the documents no window of a spec has, because data.on_unusable is "skip"."""
    return list(dict.fromkeys(what for spec in specs for what in eligible(documents, spec)[1]))


def loader(batches: "Batches", *, start: int, threads: int, prefetch: int) -> Iterator[Batch]:
    """Batches `start`, `start` + 1, ..., in that order, made ahead by reader threads.

    Small batches are made several at once, which changes nothing in them: NumPy's calls are then long beside what
    Python does between them, and threads do not wait for each other.

    Args:
      batches: with a transform that makes dicts of arrays [rows, ...].
      start: the first batch; to resume is to give the number of the next one.
      threads: reader threads; 0 makes batches when they are asked for.
      prefetch: how many batches may be made ahead.
    """
    _keep_freed_arrays()
    at_once = max(min(_EXAMPLES // batches.examples, prefetch // max(threads, 1)), 1)
    blocks = grain.MapDataset.range(start, batches.end, at_once).map(lambda first: batches.read(first, at_once))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch // at_once if threads else 0)
    return itertools.chain.from_iterable(_cut(block, batches.num_rows) for block in blocks.to_iter_dataset(options))


def _cut(block: Batch, num_rows: int) -> Iterator[Batch]:
    """The batches of `num_rows` rows that were made as one."""
    total = len(next(iter(block.values())))
    for begin in range(0, total, num_rows):
        yield {name: array[begin : begin + num_rows] for name, array in block.items()}


def _keep_freed_arrays() -> None:
    """Keeps memory that a batch's arrays leave for those of the next, in whatever program.

    glibc hands large free blocks back to the system, and the pages that come in their place, cleared, cost as much time
    as all that is done with them. From when a block of 31 MB has been freed it keeps up to twice as much: mallopt(3),
    M_MMAP_THRESHOLD. Elsewhere this does nothing.
    """
    np.empty(31 << 20, np.uint8)


class Batches:
    """Batches by number. Holds nothing that changes.

    Attributes: num_rows and examples, this process's rows and windows of a batch; end, the number of batches, which no
    run comes to.
    """

    def __init__(
        self,
        readers: Sequence[WindowReader],
        order: DrawOrder | PlannedOrder,
        transform: Transform,
        batch_size: int,
        examples_per_row: int,
        rows: np.ndarray,
        seed: int,
        pad_id: int,
        plan: RowPlan | None,
    ):
        self._readers = readers
        self._order = order
        self._transform = transform
        self._batch_size = batch_size
        self._examples_per_row = examples_per_row
        self._rows = rows
        self._seed = seed
        self._pad_id = pad_id
        self._plan = plan
        self._row_length = max(reader.longest for reader in readers)
        self._columns = Columns(readers, self._row_length, pad_id)
        self.num_rows = len(rows)
        self.examples = len(rows) * examples_per_row
        self.end = sys.maxsize // (batch_size * examples_per_row)

    def __getitem__(self, n: int) -> Batch:
        return self.read(n, 1)

    def read(self, first: int, count: int) -> Batch:
        """Batches `first`, ..., `first` + `count` - 1 as one, their rows one after another."""
        rows = (np.arange(first, first + count)[:, None] * self._batch_size + self._rows).ravel()
        examples = (rows[:, None] * self._examples_per_row + np.arange(self._examples_per_row)).ravel()
        reader, number = self._order.draw(examples)
        segments = self._segments(reader, number)
        tokens, lengths = gather(self._readers[0].tokens, segments, self._row_length, self._pad_id)
        window = segments.windows[segments.begins]  # of the batch, that each example is from
        piece = np.arange(len(window)) - np.searchsorted(window, window, side="left")
        windows = Windows(
            tokens=tokens,
            lengths=lengths,
            row_ids=(window // self._examples_per_row).astype(np.int32),
            keys=example_keys(self._seed, examples[window], piece),
            denoiser_ids=reader[window],
        )
        windows = self._columns.add(windows, segments.documents[segments.begins])
        if self._plan is not None:
            place = examples[window] % self._plan.denoiser_ids.size
            windows = windows._replace(
                denoiser_ids=self._plan.denoiser_ids.ravel()[place], parts=self._plan.parts.ravel()[place]
            )
        return self._transform(windows, len(rows))

    def _segments(self, reader: np.ndarray, number: np.ndarray) -> Segments:
        """Where the windows drawn lie, in the order in which they were drawn."""
        parts = []
        for k in np.unique(reader).tolist():
            drawn = np.flatnonzero(reader == k)
            segments = self._readers[k].segments(number[drawn])
            parts.append(segments._replace(windows=drawn[segments.windows]))
        joined = Segments(*map(np.concatenate, zip(*parts, strict=True)))
        in_order = np.argsort(joined.windows, kind="stable")
        return Segments(*(column[in_order] for column in joined))
