"""The longest raw window that fits a row, computed from output lengths, so that nothing is ever cut."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.windows import Capacity

Architecture = Literal["encoder_decoder", "decoder_only", "encoder_only"]


class OutputLengths(NamedTuple):
    """The most tokens that examples of given raw lengths can become, int [n] each."""

    inputs: np.ndarray
    targets: np.ndarray
    both: np.ndarray  # inputs plus targets of one example; less than the sum of both bounds if one grows as one shrinks


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The positions of a row, in tokens. Its `examples_per_row` examples have equal shares of them."""

    architecture: Architecture
    inputs_length: int  # encoder positions; with a single stack all positions of the row
    targets_length: int  # decoder positions of an encoder-decoder
    examples_per_row: int

    @property
    def inputs_share(self) -> int:
        """Encoder positions that one example may take; with a single stack, positions."""
        return self.inputs_length // self.examples_per_row

    @property
    def targets_share(self) -> int:
        """Decoder positions of an encoder-decoder that one example may take."""
        return self.targets_length // self.examples_per_row


def longest_window(output_lengths: Callable[[np.ndarray], OutputLengths], row: RowShape, name: str) -> int:
    """The length of the longest window of which inputs and targets fit a row, and those of all shorter windows too.

    As in T5's `random_spans_helper`, the inputs of an encoder-decoder determine the window, and targets that do not fit
    are an error. Targets that are only one token too long shorten the window, as in T5 at density .5.
    Deviation: lengths are exactly those of the noise mask. T5's helper sometimes counts zero spans, and the window is
    then one token too long (128 inputs, density .15, mean span length 64).

    Args:
      output_lengths: raw lengths, int [n] -> output lengths with EOS, sentinels and mode token.
      row: the positions of a row.
      name: the denoiser's name, for messages.

    Raises ConfigError where nothing fits, with the lengths that would.
    """
    raw = np.arange(1, 64 * (row.inputs_length + row.targets_length))
    inputs, targets, both = output_lengths(raw)
    if row.architecture != "encoder_decoder":
        window = _count_leading(both <= row.inputs_share)
        if window == 0:
            raise _inputs_too_short(row, name, int(both[0]) * row.examples_per_row)
        return window
    by_inputs = _count_leading(inputs <= row.inputs_share)
    window = _count_leading((inputs <= row.inputs_share) & (targets <= row.targets_share))
    if by_inputs == 0:
        raise _inputs_too_short(row, name, int(inputs[0]) * row.examples_per_row)
    inputs_limit = by_inputs < len(raw)
    if window == 0 or (inputs_limit and targets[by_inputs - 1] > row.targets_share + 1):
        needed = int(targets[:by_inputs].max() if inputs_limit else targets[0]) * row.examples_per_row
        fitting = int(inputs[window - 1]) * row.examples_per_row
        remedy = f", or data.inputs_length={fitting} or less" if window else ""
        raise ConfigError(
            f"data.targets_length={row.targets_length} is too short for {name}{_examples_text(row)} at "
            f"data.inputs_length={row.inputs_length}: set data.targets_length={needed} or more{remedy}"
        )
    return window


def _inputs_too_short(row: RowShape, name: str, needed: int) -> ConfigError:
    return ConfigError(
        f"data.inputs_length={row.inputs_length} is too short for {name}{_examples_text(row)}: "
        f"set it to {needed} or more"
    )


def longest_document(capacities: Sequence[Capacity], row: RowShape, name: str) -> int:
    """The most tokens of a document that fits a row whole, for every length of its prompt.

    Raises ConfigError where not even one token fits, and for row.examples_per_row above 1, which whole documents do not
    use.
    """
    if row.examples_per_row > 1:
        raise ConfigError(
            f"data.examples_per_row={row.examples_per_row} does not go with data.documents='whole', "
            "which puts as many documents into a row as fit: set it to 1"
        )
    for capacity in capacities:
        if capacity.positions <= capacity.special:
            raise ConfigError(
                f"{capacity.field}={capacity.positions} is too short for {name}: set it to {capacity.special + 1} "
                "or more"
            )
    return min(capacity.positions - capacity.special for capacity in capacities)


def _count_leading(fits: np.ndarray) -> int:
    """The number of leading entries that are True."""
    return len(fits) if fits.all() else int(np.argmin(fits))


def _examples_text(row: RowShape) -> str:
    return f" with data.examples_per_row={row.examples_per_row}" if row.examples_per_row > 1 else ""
