"""The interface of probes: measurements of every suitable run on the same text.

A probe is a frozen dataclass whose fields are flags of `python -m train.evaluate --probe=NAME`.
"""

import abc
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import track

from contract.errors import ConfigError
from data.windows.documents import Documents
from evaluation.probes.bootstrap import CONFIDENCE, NUM_RESAMPLES, SEED, Interval
from evaluation.probes.scorer import Example, Scores, hide, score
from experiment.experiment import Experiment
from generate.fill_masks import attention_order
from generate.prompts import INFILLING_TASKS, TASKS, denoisers_with_mode, first_denoiser
from models.parameters import Params
from objectives import Denoiser
from objectives.prompting import FillMasks, Task

MOST = 2**31 - 1  # of flags that are numbers: positions and counts are int32
Side = Literal["left", "both"]  # what a model sees of the text around hidden tokens

_LEFT_TASKS: tuple[Task, ...] = tuple(task for task in TASKS if task != "respond")
_BOTH_TASKS: tuple[Task, ...] = (*INFILLING_TASKS, "fill_masks")


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """What a probe measures: a run's language model, in the layout of the run or of another config.

    Attributes:
      experiment: its `model` is the language model (run.restore.language_model).
      params: the language model's.
      mesh: over whose devices rows are split.
    """

    experiment: Experiment
    params: Params
    mesh: Mesh

    def scores(
        self, examples: Iterable[Example], count: int, *, text_only: bool = False
    ) -> Iterator[tuple[int, Scores]]:
        """`scorer.score`, with a bar on standard error if it is a terminal. count: the number of examples."""
        return track(
            score(self.experiment, self.params, self.mesh, examples, text_only=text_only),
            description="scoring",
            total=count,
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe(abc.ABC):
    """One probe.

    mode: the mode token of the denoiser in whose layout the model is scored; None: that of the first suitable denoiser.
    """

    mode: str | None = None

    name: ClassVar[str]  # the value of --probe
    reads_corpus: ClassVar[bool] = True  # whether `measure` needs held-out documents
    sides: ClassVar[tuple[Side, ...]]  # what the model must see, at least one of them

    @abc.abstractmethod
    def measure(self, model: LanguageModel, documents: Documents | None) -> dict[str, Any]:
        """Returns the JSON fields of the answer.

        documents: the held-out documents; None if not `reads_corpus`. Raises ConfigError for text that does not suit
        the probe or the model.
        """

    def check(self, experiment: Experiment) -> None:  # noqa: B027  optional
        """Raises ConfigError for fields that cannot work, before a checkpoint is read."""

    @property
    def chosen_sides(self) -> tuple[Side, ...]:
        """Those of `sides` that the fields of the probe choose; all by default."""
        return self.sides

    def denoisers(self, experiment: Experiment) -> dict[Side, Denoiser]:
        """Returns the denoiser in whose layout the model is scored, for each of `chosen_sides` that the run can see.

        The denoiser is chosen as train.generate chooses the denoiser of a prompt. Raises ConfigError if no denoiser has
        the mode.
        """
        found = {side: find_denoiser(experiment, side, self.mode) for side in self.chosen_sides}
        return {side: denoiser for side, denoiser in found.items() if denoiser is not None}


def find_denoiser(experiment: Experiment, side: Side, mode: str | None) -> Denoiser | None:
    """Returns the first denoiser that hides the end of a text ("left"), or tokens within a text ("both").

    mode: its mode token, as in `Probe`. None if the run has no such denoiser.
    """
    start, stop = (1, 3) if side == "left" else (1, 2)
    candidates = [
        denoiser
        for denoiser in denoisers_with_mode(experiment, mode)
        if hide(denoiser, np.zeros(3, np.int32), start, stop, experiment.vocab) is not None
        and (side == "both" or not isinstance(denoiser.objective.prompting, FillMasks))
    ]
    if side == "both" and not experiment.model.has_decoder:
        order = attention_order(experiment, np.zeros((1, 5), np.int32))
        if order is not None and order.any():  # a UniLM pattern that sees one side alone
            return None
    return first_denoiser(candidates, _LEFT_TASKS if side == "left" else _BOTH_TASKS)


def check_at_least(flag: str, value: int, least: int) -> None:
    """Raises ConfigError for a flag below `least`, or above `MOST`."""
    if value < least:
        raise ConfigError(f"--{flag}={value} must be {least} or more")
    if value > MOST:
        raise ConfigError(f"--{flag}={value} must be at most {MOST}")


def with_interval(name: str, value: float, interval: Interval | None) -> dict[str, Any]:
    """Returns a value and its interval as JSON fields; the interval is null if there are too few data for one."""
    return {name: value, f"{name}_interval": None if interval is None else list(interval)}


def interval_fields(unit: str) -> dict[str, Any]:
    """Returns the JSON fields that describe the intervals. unit: what is resampled, such as "documents"."""
    return {
        "interval": f"{CONFIDENCE:.0%}, expanded BCa bootstrap over {unit}",
        "resamples": NUM_RESAMPLES,
        "bootstrap_seed": SEED,
    }


def sums_by_document(documents: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Returns the sum of `values`, [n], for each document. documents: the document of each value, int [n], from 0."""
    return np.bincount(np.asarray(documents), values)
