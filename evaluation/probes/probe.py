"""The interface of probes: measurements of every suitable run on the same text, with bootstrap intervals.

A probe is a frozen dataclass whose fields are flags of `python -m train.evaluate --probe=NAME`. Annotations declare
their values and ranges (contract/ranges.py).
"""

import abc
import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import stats

from contract.vocab import Vocab
from evaluation.scorer import LanguageModel, Side, find_denoiser
from experiment.experiment import Experiment
from objectives import Denoiser
from objectives.algebra.words import word_starts
from run.corpus import Corpora
from run.evaluation import standard_error

ALL = 2**31 - 1  # of a number of documents or pairs
CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
SEED = 0
MIN_DATA = 8  # fewer have no interval; of skewed data, intervals of 40 documents cover about 90% and of 200 about 95%
_MOST_FOR_BCA = 4096  # beyond, the corrections of BCa are small, and their time grows with the square of the data
_CHUNK = 1 << 22  # numbers in memory at the same time

Unit = Literal["token", "word"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe(abc.ABC):
    """One probe.

    mode: the mode token of the denoiser in whose layout the model is scored; None: that of the first suitable denoiser.
    """

    mode: str | None = None

    name: ClassVar[str]  # the value of --probe
    reads_corpus: ClassVar[bool] = True  # whether `measure` needs documents
    needs_language_model: ClassVar[bool] = True  # False: `measure` gets the Transformer without its output head
    sides: ClassVar[tuple[Side, ...]]  # what the model must see, at least one of them; (): nothing is hidden

    @abc.abstractmethod
    def measure(self, model: LanguageModel, corpora: Corpora | None) -> dict[str, Any]:
        """Returns the JSON fields of the answer.

        corpora: the held-out documents, and the training documents, of which floors are; None if not `reads_corpus`.
        Raises ConfigError for text that does not suit the probe or the model.
        """

    def check(self, experiment: Experiment) -> None:  # noqa: B027  optional
        """Raises ConfigError for fields that do not suit the run, before a checkpoint is read."""

    @property
    def chosen_sides(self) -> tuple[Side, ...]:
        """The sides among `sides` that the fields of the probe choose; all by default."""
        return self.sides

    def denoisers(self, experiment: Experiment) -> dict[Side, Denoiser]:
        """Returns the denoiser in whose layout the model is scored, for each of `chosen_sides` that the run can see.

        The denoiser is that of `find_denoiser`. Raises ConfigError if no denoiser has the mode.
        """
        found = {side: find_denoiser(experiment, side, self.mode) for side in self.chosen_sides}
        return {side: denoiser for side, denoiser in found.items() if denoiser is not None}


def unit_spans(text: np.ndarray, unit: Unit, vocab: Vocab) -> list[tuple[int, int]]:
    """Returns start and end of each token or word of `text`, int32 [n]."""
    if unit == "token":
        starts = np.arange(len(text))
    else:
        is_ordinary = (text >= vocab.content_start) & (text < vocab.content_end)
        starts = np.union1d(np.flatnonzero(word_starts(text[None], is_ordinary[None], vocab)[0]), [0])
        starts = np.union1d(starts, np.flatnonzero(~is_ordinary))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(text)], strict=True))


Interval = tuple[float, float]  # the ends of a confidence interval with the level CONFIDENCE


def ratio_interval(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """Returns the interval of sum(numerators) / sum(denominators), over documents.

    None for fewer than MIN_DATA documents, and for documents with equal ratios.

    numerators, denominators: float [n], such as each document's nats and bytes. Denominators are above 0.
    """
    ratios = numerators / denominators
    if len(ratios) < MIN_DATA or np.allclose(ratios, ratios[0], rtol=1e-12, atol=0):
        return None

    def ratio(top: np.ndarray, bottom: np.ndarray, axis: int) -> np.ndarray:
        return top.sum(axis) / bottom.sum(axis)

    return _bootstrap((numerators, denominators), ratio, paired=True)


def ratio_stderr(numerators: np.ndarray, denominators: np.ndarray) -> float | None:
    """Returns the standard error of the same ratio, over documents. Arguments as above.

    None for one document, and for documents with equal ratios.
    """
    stderr = standard_error(numerators[None], denominators[None])
    return stderr if stderr > 0 else None  # NaN for one document


def mean_interval(values: np.ndarray, strata: np.ndarray) -> Interval | None:
    """Returns the interval of the mean of `values`, drawn within their stratum.

    None for fewer than MIN_DATA values, where a stratum has one value, whose spread is unknown, and where the values of
    each stratum are equal.

    values: float [n]. strata: int [n].
    """
    groups = _groups(values, strata)
    if len(values) < MIN_DATA or groups is None:
        return None

    def mean(*drawn: np.ndarray, axis: int) -> np.ndarray:
        return sum(group.sum(axis) for group in drawn) / len(values)

    return _bootstrap(groups, mean, paired=False)


def _groups(values: np.ndarray, strata: np.ndarray) -> list[np.ndarray] | None:
    """Returns the values of each stratum; None where one has a single value, and where those of each are equal."""
    groups = [values[strata == stratum] for stratum in np.unique(strata)]
    return groups if min(map(len, groups)) > 1 and any(np.ptp(group) for group in groups) else None


def _bootstrap(data, statistic: Callable[..., np.ndarray], *, paired: bool) -> Interval:
    """Returns scipy's bootstrap interval: BCa (Efron 1987, "Better Bootstrap Confidence Intervals"), or percentiles."""
    longest, size = max(map(len, data)), len(data[0]) if paired else sum(map(len, data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            data,
            statistic,
            paired=paired,
            vectorized=True,
            n_resamples=NUM_RESAMPLES,
            batch=max(_CHUNK // size, 1),
            confidence_level=CONFIDENCE,
            method="BCa" if longest <= _MOST_FOR_BCA else "percentile",
            rng=np.random.default_rng(SEED),
        ).confidence_interval
    return float(found.low), float(found.high)


def mean_stderr(values: np.ndarray, strata: np.ndarray) -> float | None:
    """Returns the standard error of the same mean. Arguments as above.

    None where a stratum has one value, and where the values of each stratum are equal.
    """
    groups = _groups(values, strata)
    return None if groups is None else math.sqrt(sum(len(group) * group.var(ddof=1) for group in groups)) / len(values)


def mean_fields(name: str, values: np.ndarray, strata: np.ndarray) -> dict[str, Any]:
    """Returns the mean of `values`, drawn within their stratum, as JSON fields. Arguments as above."""
    return with_interval(name, float(values.mean()), mean_interval(values, strata), mean_stderr(values, strata))


def with_interval(
    name: str, value: float, interval: Sequence[float] | None, stderr: float | None = None
) -> dict[str, Any]:
    """Returns a value, its interval and its standard error as JSON fields; null where data are too few for them."""
    return {name: value, f"{name}_interval": None if interval is None else list(interval), f"{name}_stderr": stderr}


def interval_fields(unit: str) -> dict[str, Any]:
    """Returns the JSON fields that describe the intervals. unit: what is resampled, such as "documents"."""
    return {
        "interval": f"{CONFIDENCE:.0%}, bootstrap over {unit}: BCa, or percentiles for more than {_MOST_FOR_BCA}",
        "resamples": NUM_RESAMPLES,
        "bootstrap_seed": SEED,
    }
