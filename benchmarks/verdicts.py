"""How often do the statistics of studies err? python -m benchmarks.verdicts [--studies=1000]

Simulates studies of five variants and three measures, normal over seeds, and prints a JSON line for each setting: the
share of studies with any verdict (without a difference an error; with one, of 2 spreads in one measure, how often it is
found), and the share of intervals of a difference that contain the true one.
"""

import collections
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from command.flags import parse_flags, run_command
from studies.statistics import compare_each

MEASURES = 3
# name -> the spread of each variant between seeds, the baseline's first; the differences of the others from it.
SETTINGS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "equal spreads": ((1, 1, 1, 1, 1), (0, 0, 0, 0)),
    "one spread of 3.2": ((1, 1, 1, 1, 10**0.5), (0, 0, 0, 0)),  # ten times the variance
    "spreads of 1 and 3": ((1, 3, 1, 3, 1), (0, 0, 0, 0)),
    "spread of the baseline of 3.2": ((10**0.5, 1, 1, 1, 1), (0, 0, 0, 0)),
    "spread of the baseline of 5": ((5, 1, 1, 1, 1), (0, 0, 0, 0)),
    "a difference of 2 spreads": ((1, 1, 1, 1, 1), (2, 0, 0, 0)),  # in the first measure
}

_FLAGS = flags.FlagValues()
_STUDIES = flags.DEFINE_integer(
    "studies", 1000, "Simulated studies of each setting.", lower_bound=1, flag_values=_FLAGS
)


def main() -> None:
    """Reads the command line and prints the lines."""
    parse_flags(_FLAGS, __doc__)
    for line in simulate(_STUDIES.value):
        print(json.dumps(line), flush=True)


def simulate(num_studies: int) -> Iterator[dict[str, Any]]:
    """Yields a line for each setting and number of seeds."""
    for setting, (spreads, effects) in SETTINGS.items():
        for seeds in (3, 5, 8):
            rng, counts = np.random.default_rng(0), collections.Counter[str]()
            for _ in range(num_studies):
                found = False
                for measure in range(MEASURES):
                    means = np.array([0.0, *effects]) * (measure == 0)
                    samples = rng.normal(means[:, None], np.array(spreads)[:, None], size=(len(spreads), seeds))
                    values = {str(name): dict(enumerate(sample)) for name, sample in enumerate(samples)}
                    tests = compare_each("0", values, families=MEASURES)
                    for name, mean in list(zip(values, means, strict=True))[1:]:
                        pair = tests[name, "0"]
                        assert pair.low is not None and pair.high is not None
                        counts["covered"] += bool(pair.low <= mean <= pair.high)
                        if bool(mean) == any(effects):
                            found |= pair.sign != 0
                counts["found"] += found
            yield {
                "setting": setting,
                "seeds": seeds,
                "studies": num_studies,
                "found": counts["found"] / num_studies,
                "coverage": counts["covered"] / num_studies / MEASURES / (len(spreads) - 1),
            }


if __name__ == "__main__":
    run_command(main)
