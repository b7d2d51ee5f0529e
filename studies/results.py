"""What the runs of a study gave, as the report reads it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from studies.study import Study


@dataclasses.dataclass(frozen=True)
class Curve:
    """The held-out loss of a run over its training, one entry for each evaluation."""

    raw_tokens: Sequence[float]
    flops: Sequence[float]
    loss: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run of a variant, complete.

    Attributes:
      values: measure -> value. A measure without a value, such as a loss that was not reached, is absent.
      samples: measure -> prompt -> generated text.
      curve: the run's own held-out loss.
      num_params: parameters of the trained model, those of the learner's heads included.
      steps, raw_tokens, flops: totals of the training; of a variant with a start, both stages.
      seconds: of training steps. Differs between machines and starts.
      swept: the field of a sweep -> the value that the sweep chose.
      commands: the commands that repeat the run and its measures.
      heldout_digest: of the held-out text, equal for runs that compare.
      environment: what the run was trained on: name -> text, such as "device": "cpu x 1", "jax": "0.10.2".
    """

    variant: str
    seed: int
    values: Mapping[str, float]
    samples: Mapping[str, Mapping[str, str]]
    curve: Curve
    num_params: int
    steps: int
    raw_tokens: float
    flops: float
    seconds: float
    swept: Mapping[str, Any]
    commands: Sequence[str]
    heldout_digest: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A run that gave no outcome.

    state: "missing" (not started), "unfinished", "failed" or "damaged". text: one line, such as the error.
    """

    variant: str
    seed: int
    state: str
    text: str


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One value of a variant's sweep. score: the first measure; None where the run has none, with the reason."""

    variant: str
    field: str
    value: Any
    score: float | None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Results:
    """The outcomes of a study.

    Attributes:
      name: of the study, such as "masking_rate".
      study: as resolved: --seeds and --config overrides applied.
      command: the command that runs the study.
      outcomes: of complete runs, in the order of variants and seeds.
      problems: every other run of the study.
      sweeps: all values that were tried.
      environment: what the complete runs were trained on; where they differ, the values are joined by "; ".
    """

    name: str
    study: Study
    command: str
    outcomes: Sequence[Outcome]
    problems: Sequence[Problem]
    sweeps: Sequence[SweepPoint]
    environment: Mapping[str, str]

    def values(self, variant: str, measure: str) -> dict[int, float]:
        """Returns seed -> value of the variant's complete runs that have a value."""
        return {
            outcome.seed: outcome.values[measure]
            for outcome in self.outcomes
            if outcome.variant == variant and measure in outcome.values
        }
