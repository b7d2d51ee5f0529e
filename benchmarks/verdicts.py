"""How often do the statistics of studies err? python -m benchmarks.verdicts [--report='docs/results/*/report.md']

Simulates studies of five variants and three measures, normal over seeds, and prints a JSON line for each setting: the
share of studies with any verdict (without a difference an error; with one, of 2 spreads in one measure, how often it is
found), and the share of intervals of a difference that contain the true one. "paired" is the method of earlier reports:
paired t tests, with Holm's correction in each measure alone.

With --report, it tests the values of stored reports again, by both methods, and prints a JSON line for each report and
one of their sum: how many differences from the baseline were found before and are found now, which changed, and how
many published orders agree. --floor=MEASURE:NAME:VALUE adds a floor to each report that has the measure.
"""

import collections
import dataclasses
import glob
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from scipy import stats

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from studies.analysis import Measured, analyse, published_orders
from studies.results import Outcome, Results
from studies.statistics import ALPHA, Values, compare_each, holm
from studies.study import load_study

MEASURES = 3
# name -> the spread of each variant between seeds, the baseline's first; the differences of the others from it.
SETTINGS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "equal spreads": ((1, 1, 1, 1, 1), (0, 0, 0, 0)),
    "spreads of 1 and 3": ((1, 3, 1, 3, 1), (0, 0, 0, 0)),
    "spread of the baseline of 5": ((5, 1, 1, 1, 1), (0, 0, 0, 0)),
    "a difference of 2 spreads": ((1, 1, 1, 1, 1), (2, 0, 0, 0)),  # in the first measure
}

_FLAGS = flags.FlagValues()
_REPORT = flags.DEFINE_string("report", "", "Files report.md, a glob; empty: simulate.", _FLAGS)
_FLOOR = flags.DEFINE_multi_string("floor", [], "With --report: MEASURE:NAME:VALUE.", flag_values=_FLAGS)
_STUDIES = flags.DEFINE_integer(
    "studies", 1000, "Simulated studies of each setting.", lower_bound=1, flag_values=_FLAGS
)


def main() -> None:
    """Reads the command line and prints the lines."""
    parse_flags(_FLAGS, __doc__)
    lines = retest(_REPORT.value, _FLOOR.value) if _REPORT.value else simulate(_STUDIES.value)
    for line in lines:
        print(json.dumps(line), flush=True)


def simulate(num_studies: int) -> Iterator[dict[str, Any]]:
    """Yields a line for each setting and number of seeds."""
    for setting, (spreads, effects) in SETTINGS.items():
        for seeds in (3, 5, 8):
            rng, counts = np.random.default_rng(0), collections.Counter[str]()
            for _ in range(num_studies):
                found, found_paired = False, False
                for measure in range(MEASURES):
                    means = np.array([0.0, *effects]) * (measure == 0)
                    samples = rng.normal(means[:, None], np.array(spreads)[:, None], size=(len(spreads), seeds))
                    values = {str(name): dict(enumerate(sample)) for name, sample in enumerate(samples)}
                    tests, before = compare_each("0", values, families=MEASURES), paired("0", values)
                    for name, mean in list(zip(values, means, strict=True))[1:]:
                        pair = tests[name, "0"]
                        assert pair.low is not None and pair.high is not None
                        counts["covered"] += bool(pair.low <= mean <= pair.high)
                        if bool(mean) == any(effects):
                            found |= pair.sign != 0
                            found_paired |= before[name] < ALPHA
                counts.update(found=found, found_paired=found_paired)
            yield {
                "setting": setting,
                "seeds": seeds,
                "studies": num_studies,
                "found": counts["found"] / num_studies,
                "found_paired": counts["found_paired"] / num_studies,
                "coverage": counts["covered"] / num_studies / MEASURES / (len(spreads) - 1),
            }


def paired(baseline: str, values: Mapping[str, Values]) -> dict[str, float]:
    """Returns variant -> p of the paired t test against the baseline, with Holm's correction, as of earlier reports.

    p is 1 for fewer than two common seeds and for equal differences.
    """
    p = {}
    for name in values:
        if name != baseline:
            seeds = values[name].keys() & values[baseline].keys()
            pairs = [[values[one][seed] for seed in sorted(seeds)] for one in (name, baseline)]
            scale = np.abs(pairs).max(initial=0.0) * np.finfo(np.float32).eps
            is_tested = len(seeds) > 1 and np.ptp(np.subtract(*pairs)) > scale
            p[name] = float(stats.ttest_rel(*pairs).pvalue) if is_tested else 1.0
    return dict(zip(p, holm([*p.values()]), strict=True))


def retest(pattern: str, floors: list[str]) -> Iterator[dict[str, Any]]:
    """Yields a line for each report, and the sum. Raises ConfigError where there is none, and for a wrong floor."""
    files = sorted(glob.glob(pattern))
    if not files:
        raise ConfigError(f"--report={pattern} matches no file")
    heights: dict[str, dict[str, float]] = {}
    for floor in floors:
        match = re.fullmatch(r"(\w+):([^:]+):([-+.\de]+)", floor)
        if match is None:
            raise ConfigError(f"--floor={floor} must be MEASURE:NAME:VALUE, such as continuation:trigram:2.72")
        heights.setdefault(match[1], {})[match[2]] = float(match[3])
    total = collections.Counter[str]()
    for file in files:
        results = read_report(Path(file))
        runs = [dataclasses.replace(run, floors=heights) for run in results.outcomes]
        measures = analyse(dataclasses.replace(results, outcomes=runs))
        changes = [change for measure in measures for change in _changes(measure)]
        counts = collections.Counter(name for _, names in changes for name in names)
        counts.update(order.verdict for measure in measures for order in published_orders(results.study, measure))
        total += counts
        named = {kind: [where for where, names in changes if kind in names] for kind in ("lost", "new")}
        yield {"report": Path(file).parent.name, "counts": counts, **named}
    yield {"report": "all", "counts": total}


def _changes(measure: Measured) -> list[tuple[str, list[str]]]:
    """Returns (measure and variant, what is counted) for each difference from the baseline."""
    before, changes = paired(measure.baseline, measure.values), []
    for name, pair in measure.to_baseline.items():
        if pair.mean is not None:  # both have values
            was, sign = before[name] < ALPHA, bool(pair.sign)
            is_counted = {
                "differences": True,
                "before": was,
                "now": sign,
                "kept": was and sign,
                "lost": was and not sign,
                "new": sign and not was,
                "below the detectable difference": sign and pair.is_below_detectable,
                "of variants above every floor": measure.kind(pair) in ("better", "worse"),
            }
            changes.append((f"{measure.name}: {name}", [kind for kind, is_so in is_counted.items() if is_so]))
    return changes


def read_report(file: Path) -> Results:
    """Returns the results of a report, from its table of the values of every run."""
    lines = file.read_text(encoding="utf-8").replace("\\_", "_").splitlines()
    name = next((match[1] for line in lines if (match := re.match(r"Study `(\w+)`", line))), "")
    begin = next((k for k, line in enumerate(lines) if line.startswith("| variant | seed |")), None)
    if not name or begin is None:
        raise ConfigError(f"--report: {file} has no table of values: it must be the report.md of a study")
    measures = [cell.strip() for cell in lines[begin].split("|")[3:-1]]
    outcomes = []
    for line in lines[begin + 2 :]:
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if len(cells) != 2 + len(measures):
            break
        values = {
            measure: float(cell.replace("−", "-").replace(",", ""))
            for measure, cell in zip(measures, cells[2:], strict=True)
            if cell != "–"
        }
        outcomes.append(Outcome(variant=cells[0], seed=int(cells[1]), values=values))
    study = load_study(f"configs/studies/{name}.py")
    return Results(study, "", [run for run in outcomes if all(map(math.isfinite, run.values.values()))], (), ())


if __name__ == "__main__":
    run_command(main)
