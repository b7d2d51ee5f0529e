"""The loss as a function of parameters and tokens, L(N, D) = E + A / N^alpha + B / D^beta, and its fit to runs.

The form and the fit are approach 3 of Hoffmann et al. (2022), "Training Compute-Optimal Large Language Models", section
3.3, and so is the number of FLOPs of a run, C = 6 N D: six for each parameter and token.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import OptimizeResult, minimize, nnls
from scipy.special import huber

from contract.errors import ConfigError

FLOPS_PER_PARAM_AND_TOKEN = 6
CONFIDENCE = 0.95
NUM_RESAMPLES = 1000
MIN_DISTINCT = 3  # sizes, and numbers of tokens
MIN_CONFIGURATIONS = 6  # one more than coefficients
_SEED = 0
_SAME = 0.02  # relative difference below which two sizes, or two numbers of tokens, count as one
_MAX_CORRELATION = 0.99  # of log N and log D; runs at 20 tokens per parameter have 1
_DELTA = 1e-3  # of the Huber loss
_STARTS = (0.1, 0.2, 0.35, 0.6, 1.0)  # of alpha and beta
_MAX_EXPONENT = 5.0
_NEGLIGIBLE = np.exp(-7)  # a part below this share of the loss is none


class Optimum(NamedTuple):
    """The size and the tokens with the lowest loss at a budget."""

    params: float
    tokens: float
    loss: float

    @property
    def tokens_per_param(self) -> float:
        """D / N."""
        return self.tokens / self.params


@dataclasses.dataclass(frozen=True)
class Law:
    """The coefficients. Loss in nats per token, N in parameters, D in tokens.

    Attributes:
      E: the loss that no size and no number of tokens go below.
      A, alpha: of the size's part of the loss. alpha is 0 or more.
      B, beta: of the tokens' part. beta is 0 or more.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, params: ArrayLike, tokens: ArrayLike) -> np.ndarray:
        """Returns the loss, elementwise."""
        return self.E + self.A * np.power(params, -self.alpha) + self.B * np.power(tokens, -self.beta)

    def optimum(self, flops: float) -> Optimum | None:
        """Returns the size and the tokens of the lowest loss among those with 6 N D = `flops`.

        N = G (C / 6)^(beta / (alpha + beta)) with G = (alpha A / (beta B))^(1 / (alpha + beta)): Hoffmann et al.,
        equation 4. None if there is no optimum, because the loss does not depend on N or on D.
        """
        if min(self.A, self.B, self.alpha, self.beta) <= 0:
            return None
        log_pairs = math.log(flops / FLOPS_PER_PARAM_AND_TOKEN)  # of N D
        total = self.alpha + self.beta
        # In logarithms: the powers of a law with small exponents exceed the range of floats.
        log_g = (math.log(self.alpha / self.beta) + math.log(self.A) - math.log(self.B)) / total
        log_params = log_g + self.beta / total * log_pairs
        if max(abs(log_params), abs(log_pairs - log_params)) > 300:
            return None
        params, tokens = math.exp(log_params), math.exp(log_pairs - log_params)
        return Optimum(params, tokens, float(self.loss(params, tokens)))


# The paper's own coefficients are rounded, and their optimum differs much from that of the coefficients in the source
# of its text, which Besiroglu et al. (2024), "Chinchilla Scaling: A replication attempt", publish. Besiroglu et al. fit
# the paper's data again, because the paper's fit had not converged.
PUBLISHED = {
    "Besiroglu et al. (2024)": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
    "Hoffmann et al. (2022), as printed": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
    "Hoffmann et al. (2022), not rounded": Law(
        E=math.exp(0.5267228), A=math.exp(6.0073404), B=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
    ),
}


class Point(NamedTuple):
    """A run at its end.

    Attributes:
      configuration: its folder without the seed. Runs that differ in their seeds alone share a configuration.
      params: N.
      tokens: D, raw tokens of text.
      loss: of the last evaluation, in nats per scored token.
    """

    configuration: str
    params: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """C = 6 N D."""
        return FLOPS_PER_PARAM_AND_TOKEN * self.params * self.tokens


class Fit(NamedTuple):
    """The law of the runs.

    Attributes:
      law: the estimate.
      resampled: the laws of the draws of configurations.
      residual: the root mean square of log(predicted loss / loss).
    """

    law: Law
    resampled: Sequence[Law]
    residual: float


def fit(points: Sequence[Point], num_resamples: int = NUM_RESAMPLES) -> Fit:
    """Returns the law of `points` and its bootstrap.

    Minimizes the sum of Huber losses (delta 0.001) of the differences of log losses by L-BFGS, where log of the law is
    the log of a sum of exponentials of log A - alpha log N, log B - beta log D and log E, from a grid of starts, and
    takes the best minimum. Deviations from Hoffmann et al.:
    - The starts are a grid of alpha and beta only. E, A and B, in which the law is linear, start at their non-negative
      least squares. From nearly all of these starts the minimum is the same.
    - log N and log D are centered, and the sum is divided by delta^2. Without a scale of this kind L-BFGS stops before
      the minimum, which happened in the paper (Besiroglu et al. 2024).
    - alpha and beta are between 0 and 5, and each part of the law is at least 0.1% of the lowest loss. A minimum at
      such a bound means that the data do not determine the coefficient.

    The bootstrap draws configurations, each with the runs of all its seeds. A configuration is a size in one folder of
    the study, so a draw keeps what the runs of a configuration share. Draws with fewer than 3 sizes or numbers of
    tokens are drawn again.

    Raises ConfigError, one line, for points that do not determine the five coefficients.
    """
    _check(points)
    logs = np.log([[point.params, point.tokens, point.loss] for point in points]).T
    center = logs[:2].mean(axis=1)
    x, y, z = logs[0] - center[0], logs[1] - center[1], logs[2]
    starts = [_start(x, y, z, alpha, beta) for alpha, beta in itertools.product(_STARTS, _STARTS)]
    best = min((_minimize(start, x, y, z) for start in starts), key=lambda result: result.fun).x
    # The fits of draws start from the estimate.
    laws = [_law(_minimize(best, x[i], y[i], z[i]).x, center) for i in _draws(points, num_resamples)]
    residual = float(np.sqrt(np.mean((_log_loss(best, x, y)[0] - z) ** 2)))
    return Fit(_law(best, center), laws, residual)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the percentile interval of resampled values with the level CONFIDENCE.

    A value that is not a number, because a resampled law has no optimum, counts as unknown: below all and above all.
    """
    array = np.asarray(values, np.float64)
    # Percentiles that do not interpolate, because values can be infinite.
    low = np.quantile(np.where(np.isnan(array), -np.inf, array), (1 - CONFIDENCE) / 2, method="lower")
    high = np.quantile(np.where(np.isnan(array), np.inf, array), (1 + CONFIDENCE) / 2, method="higher")
    return float(low), float(high)


def _check(points: Sequence[Point]) -> None:
    remedy = "run the study at other budgets and name all folders in --out"
    counts = {"sizes": _num_distinct(point.params for point in points)}
    counts["numbers of tokens"] = _num_distinct(point.tokens for point in points)
    for what, count in counts.items():
        if count < MIN_DISTINCT:
            raise ConfigError(f"the runs have {count} different {what}, and the fit needs {MIN_DISTINCT}: {remedy}")
    classes = (_classes([getattr(point, name) for point in points]) for name in ("params", "tokens"))
    if (count := len(set(zip(*classes, strict=True)))) < MIN_CONFIGURATIONS:  # of two folders of one budget, one
        raise ConfigError(
            f"the runs have {count} different pairs of size and tokens, and a fit of five coefficients needs "
            f"{MIN_CONFIGURATIONS} or more: {remedy}"
        )
    correlation = np.corrcoef(np.log([[point.params, point.tokens] for point in points]).T)[0, 1]
    if abs(correlation) > _MAX_CORRELATION:
        raise ConfigError(
            f"log(params) and log(tokens) of the runs have a correlation of {correlation:.4f}, so the effects of size "
            "and of tokens cannot be separated: train each size at several numbers of tokens"
        )


def _num_distinct(values: Iterable[float]) -> int:
    """Returns the number of values that are not within _SAME of a smaller one."""
    return len(set(_classes(list(values))))


def _classes(values: Sequence[float]) -> list[int]:
    """Returns a number for each value, equal for those within _SAME of the smallest one with that number."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value > kept[-1] * (1 + _SAME):
            kept.append(value)
    return [bisect.bisect_right(kept, value) for value in values]


def _draws(points: Sequence[Point], count: int) -> Iterator[np.ndarray]:
    """Yields `count` arrays of indices of points, drawn by configuration."""
    names = list(dict.fromkeys(point.configuration for point in points))
    members = [[i for i, point in enumerate(points) if point.configuration == name] for name in names]
    rng = np.random.default_rng(_SEED)
    while count:
        indices = np.concatenate([members[i] for i in rng.integers(0, len(names), len(names))])
        drawn = [points[i] for i in indices]
        sizes, tokens = (_num_distinct(getattr(point, name) for point in drawn) for name in ("params", "tokens"))
        if min(sizes, tokens) >= MIN_DISTINCT:
            count -= 1
            yield indices


def _start(x: np.ndarray, y: np.ndarray, z: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Returns the start with these exponents: (log A', log B', log E, alpha, beta) of centered logs."""
    parts = np.stack([np.exp(-alpha * x), np.exp(-beta * y), np.ones_like(x)], axis=1)
    coefficients, _ = nnls(parts * np.exp(-z)[:, None], np.ones(len(x)))  # relative errors, as in the fit
    return np.array([*np.log(np.maximum(coefficients, _NEGLIGIBLE * np.exp(z.min()))), alpha, beta])


def _minimize(theta: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> OptimizeResult:
    parts = (z.min() + np.log(_NEGLIGIBLE), z.max())
    bounds = [parts] * 3 + [(0.0, _MAX_EXPONENT)] * 2
    options = {"maxiter": 2000, "maxfun": 5000, "ftol": 1e-12, "gtol": 1e-8}
    return minimize(_objective, theta, (x, y, z), jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def _log_loss(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log of the law, [n], and its derivatives by the three terms of the log-sum-exp, [3, n]."""
    terms = np.empty((3, len(x)))
    terms[0], terms[1], terms[2] = theta[0] - theta[3] * x, theta[1] - theta[4] * y, theta[2]
    largest = terms.max(axis=0)
    parts = np.exp(terms - largest)  # scipy.special.logsumexp takes ten times as long for so few numbers
    total = parts.sum(axis=0)
    return largest + np.log(total), parts / total


def _objective(theta: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the sum of Huber losses over delta^2, and its gradient."""
    predicted, shares = _log_loss(theta, x, y)
    residuals = predicted - z
    by_term = shares * np.clip(residuals, -_DELTA, _DELTA)
    gradient = np.array([*by_term.sum(axis=1), -(by_term[0] * x).sum(), -(by_term[1] * y).sum()])
    return huber(_DELTA, residuals).sum() / _DELTA**2, gradient / _DELTA**2


def _law(theta: np.ndarray, center: np.ndarray) -> Law:
    log_a, log_b, log_e, alpha, beta = map(float, theta)
    a, b = math.exp(log_a + alpha * center[0]), math.exp(log_b + beta * center[1])
    return Law(E=math.exp(log_e), A=a, B=b, alpha=alpha, beta=beta)
