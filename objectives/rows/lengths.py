"""Which raw window fills a row: worked out from output lengths, so that nothing is ever cut to fit."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.windows import Capacity

Architecture = Literal["encoder_decoder", "decoder_only", "encoder_only"]


class OutputLengths(NamedTuple):
    """Most tokens that examples of given raw lengths can become, int [n] each."""

    inputs: np.ndarray
    targets: np.ndarray
    both: np.ndarray  # inputs and targets of one example together; below their sum where one grows as the other shrinks


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The positions of a row, in tokens. A row holds `examples_per_row` examples with an equal share each."""

    architecture: Architecture
    inputs_length: int  # encoder positions; the whole row where there is one stack
    targets_length: int  # decoder positions of an encoder-decoder
    examples_per_row: int

    @property
    def inputs_share(self) -> int:
        """Encoder positions (one stack: positions) that one example may take."""
        return self.inputs_length // self.examples_per_row

    @property
    def targets_share(self) -> int:
        """Decoder positions of an encoder-decoder that one example may take."""
        return self.targets_length // self.examples_per_row


def longest_window(output_lengths: Callable[[np.ndarray], OutputLengths], row: RowShape, name: str) -> int:
    """Tokens of raw text in the longest window whose inputs and targets fit a row, as do those of all shorter ones.

    output_lengths: raw lengths, int [n] -> the most they can give, EOS, sentinels and mode token included.
    As in T5's `random_spans_helper`, the inputs of an encoder-decoder decide, and targets that do not fit are an error;
    targets one token too long shorten the window (T5 does so at density .5).
    Deviation: lengths are the true ones of the noise mask, where the helper sometimes counts zero spans and comes out
    one token too long (128 inputs, density .15, mean span 64).
    """
    raw = np.arange(1, 64 * (row.inputs_length + row.targets_length))
    inputs, targets, both = output_lengths(raw)
    if row.architecture != "encoder_decoder":
        window = _fitting(both <= row.inputs_share)
        if window == 0:
            least = int(both[0]) * row.examples_per_row
            raise ConfigError(
                f"data.inputs_length={row.inputs_length} is too short for {name}{_shared(row)}: "
                f"set it to {least} or more"
            )
        return window
    by_inputs = _fitting(inputs <= row.inputs_share)
    window = _fitting((inputs <= row.inputs_share) & (targets <= row.targets_share))
    if by_inputs == 0:
        raise ConfigError(
            f"data.inputs_length={row.inputs_length} is too short for {name}{_shared(row)}: "
            f"set it to {int(inputs[0]) * row.examples_per_row} or more"
        )
    inputs_decide = by_inputs < len(raw)
    if window == 0 or (inputs_decide and targets[by_inputs - 1] > row.targets_share + 1):
        needed = int(targets[by_inputs - 1] if inputs_decide else targets[0]) * row.examples_per_row
        instead = int(inputs[window - 1]) * row.examples_per_row
        remedy = f", or data.inputs_length={instead} or less" if window else ""
        raise ConfigError(
            f"data.targets_length={row.targets_length} is too short for {name}{_shared(row)} at "
            f"data.inputs_length={row.inputs_length}: set data.targets_length={needed} or more{remedy}"
        )
    return window


def whole_document(capacities: Sequence[Capacity], row: RowShape, name: str) -> int:
    """Tokens of the longest document that fits a row whole, whatever part of it is its prompt: what `longest_window` is
    where windows are cut. Raises ConfigError where not even one token fits, and where rows are shared out already."""
    if row.examples_per_row > 1:
        raise ConfigError(
            f"data.examples_per_row={row.examples_per_row} does not go with data.documents='whole', "
            "which puts as many documents in a row as fit: set it to 1"
        )
    for room in capacities:
        if room.positions <= room.added:
            raise ConfigError(
                f"{room.field}={room.positions} is too short for {name}: set it to {room.added + 1} or more"
            )
    return min(room.positions - room.added for room in capacities)


def _fitting(fits: np.ndarray) -> int:
    """How many leading entries are True."""
    return len(fits) if fits.all() else int(np.argmin(fits))


def _shared(row: RowShape) -> str:
    return f" with data.examples_per_row={row.examples_per_row}" if row.examples_per_row > 1 else ""
