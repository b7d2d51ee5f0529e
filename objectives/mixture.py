"""Mixtures: several objectives in one run, each with a share of the examples. UL2 is such a mixture."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from contract.errors import ConfigError
from contract.ranges import check_ranges
from objectives.objective import Denoiser, Objective, Schedule

Weight = Annotated[float, "[0, inf)"]  # of a denoiser, relative to the other denoisers
LossWeight = Annotated[float, "(0, inf)"]  # of each scored token, relative to those of other denoisers
MixtureStep = Annotated[int, "[0, 2**31)"]


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of a mixture's table, as the config gives it."""

    objective: Objective
    mode: str  # a name in data.mode_tokens, prepended to the inputs; "" for none
    weight: Weight
    final_weight: Weight  # equal to `weight` where weights are constant
    corpora: tuple[str, ...] = ()  # the names in data.sources of the corpora that it reads; () for all of them
    schedule: Schedule | None = None  # of the objective's number fields
    loss_weight: LossWeight = 1.0


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Examples drawn by weight from a table of objectives, which UL2 calls denoisers.

    denoisers: name -> the fields of an objective, with its `weight`, its `mode` token ("" for none) and, where
        schedule is "linear", its `final_weight`. configs/ul2.py is an example. A denoiser that has `corpora`, names in
        data.sources, reads these corpora alone, as in configs/multitask.py. All scored tokens have the same weight in
        the loss, times the `loss_weight` of a denoiser that has one. A `loss_weight` that is a field of the objective,
        as in multi-token prediction, is the objective's.
    mix_by: what the weights are shares of: "example" (UL2's code, seqio's mixtures) or raw "token", counted in
        the corpus' windows.
    schedule: "constant", or "linear", which has begin_step and end_step. It is a field of the config alone, in which a
        step that is a float of at most 1 is a share of train.steps.
    begin_step, end_step: the schedule of the weights. The first `begin_step` batches are mixed by the weights, the
        batches after `end_step` by the final weights; in between each denoiser's share changes linearly. Held-out
        batches do not depend on the step: each denoiser has the mean of its initial and its final share.

    On a decoder some denoisers may read inputs and predict targets, and others predict in place: configs/hybrid.py.
    """

    denoisers: Mapping[str, TableRow]
    mix_by: Literal["example", "token"]
    begin_step: MixtureStep = 0
    end_step: MixtureStep = 0

    learner: ClassVar[str] = "token_prediction"  # of a mixture whose rows name no other (`learned_objective`)

    @property
    def architectures(self) -> frozenset[str]:
        """The architectures that every denoiser of non-zero weight supports."""
        return frozenset.intersection(*(row.objective.architectures for row in self.drawn.values()))

    @property
    def drawn(self) -> dict[str, TableRow]:
        """The rows of non-zero initial or final weight."""
        return {name: row for name, row in self.denoisers.items() if row.weight > 0 or row.final_weight > 0}

    def table(self, field: str) -> tuple[Denoiser, ...]:
        """The denoisers of non-zero initial or final weight, in the order of the config.

        field: the config field of the mixture, for messages.

        Raises ConfigError for steps out of order, weights that cannot be shares, denoisers without a common
        architecture, and a mode token for an objective that predicts in place.
        """
        check_ranges(Mixture, vars(self), field)
        if self.begin_step > self.end_step:
            raise ConfigError(f"{field}.begin_step={self.begin_step} must be {field}.end_step={self.end_step} or less")
        table = f"{field}.denoisers"
        for name, row in self.denoisers.items():
            check_ranges(TableRow, vars(row), f"{table}.{name}")
        for name_of_weight in ("weight", "final_weight"):
            if not any(getattr(row, name_of_weight) for row in self.denoisers.values()):
                raise ConfigError(f"{table}: every {name_of_weight} is 0; give at least one denoiser a share")
        if not self.architectures:
            supported = {name: " or ".join(sorted(row.objective.architectures)) for name, row in self.drawn.items()}
            listed = "; ".join(f"{name}: {architectures}" for name, architectures in supported.items())
            raise ConfigError(f"{table} have no model.architecture in common: {listed}")
        for name, row in self.drawn.items():
            if row.mode and (row.objective.in_place or row.objective.has_places):
                how = "predicts in place" if row.objective.in_place else "reads a text in another order"
                raise ConfigError(
                    f"{table}.{name}.mode={row.mode!r} is prepended to inputs that have separate targets; "
                    f"{type(row.objective).__name__} {how}: set it to ''"
                )
        return tuple(
            Denoiser(
                name, f"{table}.{name}", row.objective, row.weight, row.mode, row.final_weight, row.corpora,
                schedule=row.schedule, loss_weight=row.loss_weight,
            )
            for name, row in self.drawn.items()
        )  # fmt: skip


def learned_objective(objective: Objective | Mixture) -> Objective | Mixture:
    """Returns the objective that names the learner of a run and has its fields.

    Of a mixture it is the first row's that names another learner than "token_prediction", which then trains all rows;
    without one, the mixture itself.
    """
    rows = objective.drawn.values() if isinstance(objective, Mixture) else ()
    return next((row.objective for row in rows if row.objective.learner != "token_prediction"), objective)
