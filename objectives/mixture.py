"""Mixtures: several objectives in one run, each with its share of the examples. UL2 is one such table."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from contract.errors import ConfigError
from objectives.objective import Denoiser, Objective


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of the table; `corruption` is itself an objective of this package."""

    objective: Objective
    mode: str  # a name in data.mode_tokens, put before the inputs; "" for none
    weight: float
    final_weight: float  # the same, where the weights are constant


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Examples drawn from a table of objectives ("denoisers", as UL2 calls its own) by weight.

    mix_by: what the weights share out - "example" (UL2's code, seqio's mixtures) or raw "token".
    begin_step, end_step: of a schedule. The first `begin_step` batches are mixed by the weights, those after
      `end_step` by the final weights; in between each row's share goes in a straight line from the one to the other.
    Held-out batches do not change with the step: each row has the mean of its first and its final share.

    Rows are all of one layout family: they read inputs and predict targets, or all predict in place.
    """

    denoisers: Mapping[str, TableRow]
    mix_by: Literal["example", "token"]
    begin_step: int = 0
    end_step: int = 0

    @property
    def architectures(self) -> frozenset[str]:
        """Those that every row of non-zero weight goes with."""
        return frozenset.intersection(*(row.objective.architectures for row in self._drawn.values()))

    @property
    def _drawn(self) -> dict[str, TableRow]:
        return {name: row for name, row in self.denoisers.items() if row.weight > 0 or row.final_weight > 0}

    def rows(self, field: str) -> tuple[Denoiser, ...]:
        """The rows that are drawn, at first or at last.

        Raises ConfigError for steps out of order, weights that cannot be shares, and rows that no model takes together.
        """
        if not 0 <= self.begin_step <= self.end_step:
            raise ConfigError(
                f"{field}.begin_step={self.begin_step} and {field}.end_step={self.end_step} must be 0 or more, in order"
            )
        table = f"{field}.denoisers"
        for field in ("weight", "final_weight"):
            weights = {name: getattr(row, field) for name, row in self.denoisers.items()}
            for name, weight in weights.items():
                if not 0 <= weight < math.inf:
                    raise ConfigError(f"{table}.{name}.{field}={weight} must be 0 or more")
            if not any(weights.values()):
                raise ConfigError(f"{table}: every {field} is 0; give at least one denoiser a share")
        if not self.architectures:
            raise ConfigError(f"{table} have no model.architecture in common: {self._by_architecture()}")
        for name, row in self._drawn.items():
            if row.mode and "encoder_only" in row.objective.architectures:
                raise ConfigError(
                    f"{table}.{name}.mode={row.mode!r} goes before inputs that have targets of their own; "
                    f"{type(row.objective).__name__} predicts in place: set it to ''"
                )
        return tuple(
            Denoiser(name, f"{table}.{name}", row.objective, row.weight, row.mode, row.final_weight)
            for name, row in self._drawn.items()
        )

    def _by_architecture(self) -> str:
        rows: dict[str, list[str]] = {}
        for name, row in self._drawn.items():
            rows.setdefault(" or ".join(sorted(row.objective.architectures)), []).append(name)
        return "; ".join(f"{', '.join(names)}: {architectures}" for architectures, names in rows.items())
