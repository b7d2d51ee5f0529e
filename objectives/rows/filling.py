"""Rows planned to be full: which denoisers share a row, and how long each one's window is there.

All of it follows from what windows of given lengths can become, so it is worked out once, before any text is read. The
plan is a cycle of rows that comes round and round (contract/batch.py, RowPlan):

- Where lengths are drawn, as prefix LM's are, a denoiser is planned in parts whose lengths vary little, all parts
  equally often: what is kept free for the longest draw of a part is seldom much. On the whole its lengths are drawn as
  ever.
- Every denoiser has its share of the examples of a cycle, to within 1%.
- Rows are dealt out so that what their examples take together, of the encoder and of the decoder, is as equal as it
  can be: much to predict beside little to predict.
- Then each window of a row is made longer or shorter, by as little as will do, until the row is full.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.windows import RowPlan
from objectives.objective import Denoiser
from objectives.rows.lengths import RowShape

_PARTS = 8
_MOST_EXAMPLES = 1024  # in a cycle
_TOLERANCE = 0.01  # of each denoiser's share
_SCALES = 2 / 3, 4 / 3  # how far a window may be from its nominal length, before what is left of the row is used up
_LONGEST = 2  # times its nominal length
_STIFFNESS = 0.05  # what a window's change weighs beside what it leaves of the row
_UNIT = 1 << 16  # of a stack's positions: whole numbers, which every host adds up alike
_ROUNDS = 5  # of corrections towards shares of the tokens
_FULL = 0.9


class Planned(NamedTuple):
    """A plan, and what comes of it."""

    rows: RowPlan
    filled: tuple[float, ...]  # expected share of the positions that are filled: of the encoder and decoder, or of one
    targets_length: int  # with which an encoder-decoder's rows of this many inputs would be full on both sides


class _Units(NamedTuple):
    """What is dealt out: the parts of all denoisers, U of them. Lengths are of S stacks, for raw lengths 1..N."""

    denoiser_ids: np.ndarray  # int64 [U], the denoiser
    parts: np.ndarray  # int64 [U]
    most: np.ndarray  # int64 [U, S, N], positions that an example can take, and shorter ones can
    mean: np.ndarray  # float64 [U, S, N], positions that it takes on average


def plan_cycle(denoisers: Sequence[Denoiser], shape: RowShape, *, mix_by: str) -> Planned:
    """Plans rows of `shape.examples_per_row` examples, M, in which nothing is ever cut.

    A window's nominal length is what fills an M-th of the row's encoder, or of its one stack; of a denoiser with hardly
    any inputs, an M-th of the longer side. Weights share out examples or raw tokens: mix_by "example" or "token".

    Raises ConfigError where not even the shortest windows fit, and for weights that no cycle of 1024 examples has.
    """
    room = np.array([shape.inputs_length, shape.targets_length][: _num_stacks(shape)])
    weights = np.array([denoiser.weight for denoiser in denoisers])
    for num_parts in (_PARTS, 1):
        units = _units_of(denoisers, shape, num_parts)
        nominal = _nominal(units, denoisers, shape)
        shares = weights / (nominal if mix_by == "token" else 1) / np.bincount(units.denoiser_ids)
        counts = _counts(shares[units.denoiser_ids], shape.examples_per_row)
        if counts is not None:
            break
    else:
        least = denoisers[int(shares.argmin())]
        raise ConfigError(
            f"data.packing='planned' keeps weights in cycles of at most {_MOST_EXAMPLES} examples, too few for "
            f"{least.field} with {shares.min() / shares.sum():.2%} of them: change the weights, or set "
            "data.packing='equal'"
        )
    nominal = nominal[units.denoiser_ids]
    at_nominal = _at(units.most, np.arange(len(nominal)), nominal)
    taken = counts @ at_nominal
    targets_length = int(np.ceil(shape.inputs_length * taken[-1] / taken[0]))
    sizes = np.rint(at_nominal / room * _UNIT).astype(np.int64)
    kinds, times = np.unique(_deal(counts, sizes, shape.examples_per_row), axis=0, return_counts=True)
    raw = _filling(units, kinds, nominal, room)
    if (raw == 0).any():
        raise ConfigError(
            f"data.targets_length={shape.targets_length} is too short for {shape.examples_per_row} examples of "
            f"data.inputs_length={shape.inputs_length} together: set it to {targets_length}"
        )
    if mix_by == "token":
        raw = _by_token(units, kinds, times, raw, nominal, room, denoisers)
    filled = times @ _at(units.mean, kinds, raw).sum(axis=1) / times.sum() / room
    cycle = _spread(times)
    rows = RowPlan(*(a[cycle].astype(np.int32) for a in (units.denoiser_ids[kinds], raw, units.parts[kinds])))
    return Planned(rows, tuple(filled.tolist()), targets_length)


def advice(planned: Planned, denoisers: Sequence[Denoiser], shape: RowShape, *, mix_by: str) -> list[str]:
    """A warning where less than 0.9 of a side of an encoder-decoder is filled. Arguments as of `plan_cycle`."""
    if len(planned.filled) == 1 or min(planned.filled) >= _FULL:
        return []
    found = f"data.packing='planned' fills {_percent(planned)} positions"
    if planned.targets_length != shape.targets_length:
        suited = dataclasses.replace(shape, targets_length=planned.targets_length)
        better = plan_cycle(denoisers, suited, mix_by=mix_by)
        if min(better.filled) > min(planned.filled):
            found += f"; data.targets_length={planned.targets_length} would fill {_percent(better)}"
            planned = better
    if min(planned.filled) < _FULL:
        found += "; more data.examples_per_row, of longer rows, leave less over"
    return [found]


def _percent(planned: Planned) -> str:
    encoder, decoder = planned.filled
    return f"{encoder:.0%} of the encoder's and {decoder:.0%} of the decoder's"


def _at(lengths: np.ndarray, units: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Positions, [..., S], of examples of `units` whose windows are `raw` long, int [...]; lengths: [U, S, N]."""
    return lengths[units, :, raw - 1]


def _num_stacks(shape: RowShape) -> int:
    return 2 if shape.architecture == "encoder_decoder" else 1


def _units_of(denoisers: Sequence[Denoiser], shape: RowShape, count: int) -> _Units:
    raw = np.arange(1, 64 * (shape.inputs_length + shape.targets_length) // shape.examples_per_row)
    denoiser_ids, parts, most, mean = [], [], [], []
    for index, denoiser in enumerate(denoisers):
        for part, one in enumerate(denoiser.parts(count)):
            inputs, targets, both = one.output_lengths(raw)
            inputs = np.maximum(inputs, 1)  # an encoder without inputs reads one EOS
            longest = np.stack([inputs, targets] if _num_stacks(shape) == 2 else [both])
            # Where one side grows as the other shrinks, both are taken to be half-way between least and most.
            drawn = np.maximum(inputs + targets - both, 0) / 2 if len(longest) == 2 else 0
            denoiser_ids.append(index)
            parts.append(part)
            most.append(np.maximum.accumulate(longest, axis=1))
            mean.append(longest - drawn)
    return _Units(*map(np.array, (denoiser_ids, parts, most, mean)))


def _nominal(units: _Units, denoisers: Sequence[Denoiser], shape: RowShape) -> np.ndarray:
    """int64 [denoisers]: the longest window whose examples, of every part, take no more than their share of a row."""
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
    """int64 [U]: examples in the shortest cycle of whole rows in which all units have their shares; None: in none."""
    for examples in range(per_row, _MOST_EXAMPLES + 1, per_row):
        exact = shares / shares.sum() * examples
        counts = np.floor(exact).astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: examples - counts.sum()]] += 1
        if np.abs(counts / exact - 1).max() <= _TOLERANCE:
            return counts
    return None


def _deal(counts: np.ndarray, sizes: np.ndarray, per_row: int) -> np.ndarray:
    """Rows, int64 [R, M], of as many examples of each unit as `counts`, int64 [U], that take about the same room.

    sizes: int64 [U, S], what an example takes of each stack. From a first deal on, two examples of different rows
    change places as long as that brings the rows' sums closer together, in the mean of squares.
    """
    flat = np.repeat(np.arange(len(counts)), counts).reshape(per_row, -1).T.ravel()
    row = np.arange(len(flat)) // per_row
    sums = sizes[flat].reshape(-1, per_row, sizes.shape[1]).sum(axis=1)
    is_better = True
    while is_better:
        is_better = False
        for here in range(len(flat)):
            change = sizes[flat] - sizes[flat[here]]
            gain = -(change * (change + sums[row[here]] - sums[row])).sum(axis=1)
            gain[row == row[here]] = 0
            there = gain.argmax()
            if gain[there] > 0:
                sums[row[here]] += change[there]
                sums[row[there]] -= change[there]
                flat[here], flat[there] = flat[there], flat[here]
                is_better = True
    return np.sort(flat.reshape(-1, per_row), axis=1)


def _fitted(units: _Units, row: np.ndarray, nominal: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Raw lengths, int64 [M], that fill a row of units, int64 [M], from their nominal ones on; 0 where none fit."""

    def used(raw: np.ndarray) -> float:
        return (_at(units.most, row, raw).sum(axis=0) / room).max()

    sizes = (_at(units.most, row, nominal) / room).T  # [S, M]
    # Of all scales the closest to 1 that fill every stack, or nearly so: ridge regression. Rounded, because hosts whose
    # LAPACKs differ in the last bit must all have the same plan.
    normal = sizes @ sizes.T + _STIFFNESS / len(row) * np.eye(len(room))
    scale = np.clip(1 + sizes.T @ np.linalg.solve(normal, 1 - sizes.sum(axis=1)), *_SCALES).round(6)
    longest = np.maximum(nominal * _LONGEST, 1).astype(np.int64)
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


def _filling(units: _Units, kinds: np.ndarray, nominal: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Raw lengths, int64 [Q, M], that fill Q kinds of rows of units, int64 [Q, M]."""
    return np.stack([_fitted(units, kind, nominal[kind], room) for kind in kinds])


def _by_token(
    units: _Units,
    kinds: np.ndarray,
    times: np.ndarray,
    raw: np.ndarray,
    nominal: np.ndarray,
    room: np.ndarray,
    denoisers: Sequence[Denoiser],
) -> np.ndarray:
    """Raw lengths, int64 [Q, M], with which every denoiser has its weight of the raw tokens of a cycle.

    Nominal lengths go up of those that have too few, and down of the others. What that leaves over is made even by
    shorter windows. Raises ConfigError where windows are so short that whole tokens do not come to these shares.
    """
    denoiser_ids, weights = units.denoiser_ids[kinds], np.array([denoiser.weight for denoiser in denoisers])

    def excess(raw: np.ndarray) -> np.ndarray:
        """float64 [denoisers]: the share of the tokens that each has, of the one it should have."""
        tokens = np.bincount(denoiser_ids.ravel(), (raw * times[:, None]).ravel())
        return tokens / tokens.sum() / weights * weights.sum()

    for _ in range(_ROUNDS):
        if np.abs(excess(raw) - 1).max() <= _TOLERANCE:
            return raw
        nominal = np.maximum(nominal / excess(raw)[units.denoiser_ids], 1).astype(np.int64)
        raw = _filling(units, kinds, nominal, room)
    scale = excess(raw).min() / excess(raw)
    raw = np.maximum(np.rint(raw * scale[denoiser_ids]), 1).astype(np.int64)
    if np.abs(excess(raw) - 1).max() > _TOLERANCE:
        furthest = denoisers[int(np.abs(excess(raw) - 1).argmax())]
        raise ConfigError(
            f"data.packing='planned' cannot keep {furthest.field}.weight to within {_TOLERANCE:.0%} of the raw tokens "
            "with windows this short: set a longer data.inputs_length, or objective.mix_by='example'"
        )
    return raw


def _spread(times: np.ndarray) -> np.ndarray:
    """int64 [R]: kinds of rows, each as often as `times` says, evenly spread over the cycle."""
    kinds = np.repeat(np.arange(len(times)), times)
    nth = np.arange(len(kinds)) - np.repeat(np.cumsum(times) - times, times)
    return kinds[np.argsort((nth + 0.5) / times[kinds], kind="stable")]
