"""Planned packing: which examples share a row, and how long each window is, so that rows are full.

The plan depends on the output lengths alone and is computed once, before any text is read. The plan is a cycle of rows
that repeats during the run (contract/windows.py, RowPlan):

- A denoiser whose lengths are random, such as prefix LM, has variants whose lengths vary less. All are equally
  frequent, so that their lengths together have the distribution of the denoiser. A row reserves positions for the
  longest example of a variant, which is little more than a mean example of that variant needs.
- Every denoiser has its share of the examples of a cycle, to within 1%.
- Examples are assigned to rows such that all rows need nearly the same number of encoder positions and of decoder
  positions: an example with many targets shares a row with examples with few targets.
- Each window of a row is then lengthened or shortened, as little as possible, until the row is full.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.windows import RowPlan
from objectives.objective import Denoiser, RowShape

_VARIANTS = 8  # of a denoiser whose lengths are random
_MAX_EXAMPLES = 1024  # in a cycle
_TOLERANCE = 0.01  # relative error of each denoiser's share
_SCALES = 2 / 3, 4 / 3  # bounds of a window's length relative to its nominal length, before the row is filled up
_MAX_SCALE = 2  # upper bound of the same ratio while the row is filled up
_STIFFNESS = 0.05  # weight of a window's change relative to the positions that it leaves unused
_UNIT = 1 << 16  # size of a whole stack: sizes are integers, whose sums are equal on all hosts
_FULL = 0.9  # the share of filled positions below which there is a warning


class Planned(NamedTuple):
    """A plan and its statistics."""

    rows: RowPlan
    filled: tuple[float, ...]  # expected share of filled positions of each stack
    targets_length: int  # the targets length at which both stacks of an encoder-decoder would be full


class _Units(NamedTuple):
    """The U variants of all denoisers, whose examples are assigned to rows. S stacks; raw lengths 1..N."""

    denoiser_ids: np.ndarray  # int64 [U]
    variant_ids: np.ndarray  # int64 [U]
    most: np.ndarray  # int64 [U, S, N], the most positions that an example of this raw length or a shorter one takes
    mean: np.ndarray  # float64 [U, S, N], the mean positions that an example takes


def plan_cycle(denoisers: Sequence[Denoiser], shape: RowShape) -> Planned:
    """Plans rows of M = `shape.examples_per_row` examples in which nothing is cut.

    A window's nominal length is the longest with which an example fits 1/M of the row's encoder or single stack and, in
    an encoder-decoder, whose targets fit 1/M of the longer stack. Weights are shares of the examples.

    Raises ConfigError where even the shortest windows do not fit, and for weights that no cycle of 1024 examples has.
    """
    positions = np.array([shape.inputs_length, shape.targets_length][: _num_stacks(shape)])
    weights = np.array([denoiser.weight for denoiser in denoisers])
    for num_variants in (_VARIANTS, 1):
        units = _units_of(denoisers, shape, num_variants)
        nominal = _nominal(units, denoisers, shape)
        shares = weights / np.bincount(units.denoiser_ids)
        counts = _counts(shares[units.denoiser_ids], shape.examples_per_row)
        if counts is not None:
            break
    else:
        least = denoisers[int(shares.argmin())]
        raise ConfigError(
            f"data.packing='planned' keeps weights in cycles of at most {_MAX_EXAMPLES} examples, too few for "
            f"{least.field} with {shares.min() / shares.sum():.2%} of them: change the weights, or set "
            "data.packing='equal'"
        )
    nominal = nominal[units.denoiser_ids]
    at_nominal = _at(units.most, np.arange(len(nominal)), nominal)
    taken = counts @ at_nominal
    targets_length = int(np.ceil(shape.inputs_length * taken[-1] / taken[0]))
    sizes = np.rint(at_nominal / positions * _UNIT).astype(np.int64)
    distinct_rows, times = np.unique(_assign(counts, sizes, shape.examples_per_row), axis=0, return_counts=True)
    raw = np.stack([_fitted(units, row, nominal[row], positions) for row in distinct_rows])
    if (raw == 0).any():
        raise ConfigError(
            f"data.targets_length={shape.targets_length} is too short for {shape.examples_per_row} examples of "
            f"data.inputs_length={shape.inputs_length} together: set it to {targets_length}"
        )
    filled = times @ _at(units.mean, distinct_rows, raw).sum(axis=1) / times.sum() / positions
    cycle = _spread(times)
    rows = RowPlan(
        *(a[cycle].astype(np.int32) for a in (units.denoiser_ids[distinct_rows], raw, units.variant_ids[distinct_rows]))
    )
    return Planned(rows, tuple(filled.tolist()), targets_length)


def warnings_about(planned: Planned, shape: RowShape) -> list[str]:
    """Returns a warning if less than 0.9 of a stack of an encoder-decoder is filled."""
    if len(planned.filled) == 1 or min(planned.filled) >= _FULL:
        return []
    encoder, decoder = planned.filled
    remedy = f"data.targets_length={planned.targets_length} suits the examples"
    if planned.targets_length == shape.targets_length:
        remedy = "a larger data.examples_per_row with longer rows fills more"
    filled = f"{encoder:.0%} of the encoder's and {decoder:.0%} of the decoder's positions"
    return [f"data.packing='planned' fills {filled}; {remedy}"]


def _at(lengths: np.ndarray, units: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Positions [..., S] of examples of `units` with windows of `raw` tokens, int [...] each; lengths: [U, S, N]."""
    return lengths[units, :, raw - 1]


def _num_stacks(shape: RowShape) -> int:
    return 2 if shape.architecture == "encoder_decoder" else 1


def _units_of(denoisers: Sequence[Denoiser], shape: RowShape, count: int) -> _Units:
    raw = np.arange(1, 64 * (shape.inputs_length + shape.targets_length) // shape.examples_per_row)
    denoiser_ids, variant_ids, most, mean = [], [], [], []
    for index, denoiser in enumerate(denoisers):
        for k, variant in enumerate(denoiser.variants(count)):
            inputs, targets, both = variant.output_lengths(raw)
            inputs = np.maximum(inputs, 1)  # without inputs the encoder reads one EOS
            longest = np.stack([inputs, targets] if _num_stacks(shape) == 2 else [both])
            # Where targets grow as inputs shrink, the mean of each is half-way between its least and its most.
            drawn = np.maximum(inputs + targets - both, 0) / 2 if len(longest) == 2 else 0
            denoiser_ids.append(index)
            variant_ids.append(k)
            most.append(np.maximum.accumulate(longest, axis=1))
            mean.append(longest - drawn)
    return _Units(*map(np.array, (denoiser_ids, variant_ids, most, mean)))


def _nominal(units: _Units, denoisers: Sequence[Denoiser], shape: RowShape) -> np.ndarray:
    """int64 [denoisers]: the longest window whose examples of every variant take at most their share of a row."""
    sides = [shape.inputs_length, max(shape.inputs_length, shape.targets_length)][: _num_stacks(shape)]
    share = np.array(sides) // shape.examples_per_row
    fits = (units.most <= share[:, None]).all(axis=1)  # [U, N], True up to some length
    nominal = np.full(len(denoisers), units.most.shape[2])
    np.minimum.at(nominal, units.denoiser_ids, fits.sum(axis=1))
    if not nominal.all():
        index = int(nominal.argmin())
        needed = int(units.most[units.denoiser_ids == index, 0, 0].max()) * shape.examples_per_row
        raise ConfigError(
            f"data.inputs_length={shape.inputs_length} is too short for {denoisers[index].name} with "
            f"data.examples_per_row={shape.examples_per_row}: set it to {needed} or more"
        )
    return nominal


def _counts(shares: np.ndarray, per_row: int) -> np.ndarray | None:
    """int64 [U]: the examples of each unit in the shortest cycle of whole rows with these shares; None without one."""
    for examples in range(per_row, _MAX_EXAMPLES + 1, per_row):
        exact = shares / shares.sum() * examples
        counts = np.floor(exact).astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: examples - counts.sum()]] += 1
        if np.abs(counts / exact - 1).max() <= _TOLERANCE:
            return counts
    return None


def _assign(counts: np.ndarray, sizes: np.ndarray, per_row: int) -> np.ndarray:
    """The unit of each example of each row, int64 [R, M], with nearly equal sizes of all rows.

    counts: int64 [U], examples of each unit. sizes: int64 [U, S], what an example takes of each stack. Examples of two
    rows are swapped as long as a swap lowers the sum of squares of the rows' sizes.
    """
    flat = np.repeat(np.arange(len(counts)), counts).reshape(per_row, -1).T.ravel()
    row = np.arange(len(flat)) // per_row
    sums = sizes[flat].reshape(-1, per_row, sizes.shape[1]).sum(axis=1)
    improved = True
    while improved:
        improved = False
        for i in range(len(flat)):
            change = sizes[flat] - sizes[flat[i]]
            gain = -(change * (change + sums[row[i]] - sums[row])).sum(axis=1)
            gain[row == row[i]] = 0
            j = gain.argmax()
            if gain[j] > 0:
                sums[row[i]] += change[j]
                sums[row[j]] -= change[j]
                flat[i], flat[j] = flat[j], flat[i]
                improved = True
    return np.sort(flat.reshape(-1, per_row), axis=1)


def _fitted(units: _Units, row: np.ndarray, nominal: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Raw lengths, int64 [M], close to the nominal ones, that fill a row of units, int64 [M]; 0 where none fit."""

    def used(raw: np.ndarray) -> float:
        return (_at(units.most, row, raw).sum(axis=0) / positions).max()

    sizes = (_at(units.most, row, nominal) / positions).T  # [S, M]
    # Ridge regression: the scales closest to 1 that nearly fill every stack. Rounded, because hosts whose LAPACKs
    # differ in the last bit must all have the same plan.
    normal = sizes @ sizes.T + _STIFFNESS / len(row) * np.eye(len(positions))
    scale = np.clip(1 + sizes.T @ np.linalg.solve(normal, 1 - sizes.sum(axis=1)), *_SCALES).round(6)
    longest = np.maximum(nominal * _MAX_SCALE, 1).astype(np.int64)
    raw = np.clip(nominal * scale, 1, longest).astype(np.int64)
    raw = np.clip(raw / used(raw), 1, longest).astype(np.int64)
    while used(raw) > 1:
        if raw.max() == 1:
            return np.zeros_like(raw)
        raw[np.argmax(np.where(raw > 1, raw / nominal, 0))] -= 1
    for step in (64, 8, 1):
        grows = True
        while grows:
            grows = False
            for k in np.argsort(raw / nominal, kind="stable"):
                longer = raw + step * (np.arange(len(raw)) == k)
                if longer[k] <= longest[k] and used(longer) <= 1:
                    raw, grows = longer, True
    return raw


def _spread(times: np.ndarray) -> np.ndarray:
    """int64 [R]: the index k of each distinct row times[k] times, evenly spread over the cycle."""
    distinct_rows = np.repeat(np.arange(len(times)), times)
    nth = np.arange(len(distinct_rows)) - np.repeat(np.cumsum(times) - times, times)
    return distinct_rows[np.argsort((nth + 0.5) / times[distinct_rows], kind="stable")]
