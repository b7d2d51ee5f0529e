"""The rates of several corpora in one run: the share of the examples, or of their raw tokens, that each corpus has.

A corpus has a rate in proportion to its `weight` in `data.sources`. With data.rates="num_examples" the weight is
multiplied by min(n, K)^(1/T), where n is the number of the corpus' training documents, K is data.rates_maximum and T is
data.rates_temperature: examples-proportional mixing with an artificial limit and temperature-scaled mixing of Raffel et
al. 2020, section 3.5.2, and seqio's `rate_num_examples`.
"""

import math
from collections.abc import Sequence
from typing import Literal

from contract.errors import ConfigError

RateKind = Literal["weight", "num_examples"]  # the values of data.rates


def rate_factors(kind: RateKind, counts: Sequence[int], *, maximum: int, temperature: float) -> tuple[float, ...]:
    """Returns the number by which the weight of each corpus is multiplied.

    Args:
      kind: data.rates. All factors of "weight" are 1.
      counts: the number of training documents of each corpus, at least 1.
      maximum: the K of the module's docstring; 0 for no limit.
      temperature: the T of the module's docstring, above 0.
    """
    if kind == "weight":
        return (1.0,) * len(counts)
    logs = [math.log(min(count, maximum) if maximum else count) / temperature for count in counts]
    return tuple(math.exp(log - max(logs)) for log in logs)  # the largest is 1, so that no power overflows


def rates(weights: Sequence[float], factors: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Returns the rate of each corpus, by name; they sum to 1. Raises ConfigError for a rate that is 0 as a number."""
    products = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    found = {name: product / sum(products) for name, product in zip(names, products, strict=True)}
    for name, rate in found.items():
        if not rate > 0:
            raise ConfigError(
                f"corpus {name!r} has a rate of 0, and is never read: raise data.sources.{name}.weight or "
                "data.rates_temperature, or remove it from data.sources"
            )
    return found
