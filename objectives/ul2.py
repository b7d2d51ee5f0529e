"""UL2's mixture of denoisers (Tay et al. 2022, section 3.1.2, table 1): a table of corruptions with mode tokens."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from objectives.errors import ConfigError
from objectives.examples import Corruption, Denoiser


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of the table; `corruption` is itself an objective of this package."""

    corruption: Corruption
    weight: float
    mode: str


@dataclasses.dataclass(frozen=True)
class UL2:
    """Examples drawn from a table of denoisers, each marked by its mode token at the start of its inputs.

    mix_by: what the weights share out - "example" (the papers' code, seqio's mixtures) or raw "token".
    """

    denoisers: Mapping[str, TableRow]
    mix_by: Literal["example", "token"]

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})

    def rows(self, where: str) -> tuple[Denoiser, ...]:
        """The table's rows of non-zero weight. Raises ConfigError for weights that cannot be shares."""
        for name, row in self.denoisers.items():
            if not 0 <= row.weight < float("inf"):
                raise ConfigError(f"{where}.denoisers.{name}.weight={row.weight} must be 0 or more")
        rows = tuple(
            Denoiser(name, f"{where}.denoisers.{name}", row.corruption, row.weight, row.mode)
            for name, row in self.denoisers.items()
            if row.weight > 0
        )
        if not rows:
            raise ConfigError(f"{where}.denoisers: every weight is 0; give at least one denoiser a share")
        return rows
