"""The tables of a report: of a measure and of a sweep."""

import dataclasses
import pathlib

from studies.analysis import Measured, summarize_floor
from studies.markdown import NONE, decimals_for, fields_text, number, probability, text, with_interval
from studies.plot import draw_values
from studies.results import Outcome, Results
from studies.statistics import Summary, compare_shares, spread_between_seeds, summarize, summarize_share


@dataclasses.dataclass(frozen=True)
class MeasureText:
    """A measure as Markdown. families: of tests in the study."""

    found: Measured
    families: int

    @property
    def figure(self) -> str:
        """The path of its figure; "" where no run has a value."""
        return f"figures/{self.found.name}.svg" if any(self.found.values.values()) else ""

    def draw(self, path: pathlib.Path, *, width: float = 7.2) -> None:
        """Draws the values, with floors and the value at which a run succeeds. width: of the figure, in inches."""
        found = self.found
        means = {floor: summarize_floor(value).mean for floor, value in found.floors.items()}
        lines = {floor: mean for floor, mean in means.items() if mean is not None}
        if found.is_success_rate:
            lines["success"] = found.fields["success_at"]
        label = f"{found.name} ({found.better} is better)"
        draw_values(str(path), label, found.values, found.baseline, lines, width=width)

    @property
    def description(self) -> str:
        """The fields that say how it is taken."""
        fields = self.found.fields
        return fields_text({name: value for name, value in fields.items() if value and name not in ("better", "only")})

    @property
    def decimals(self) -> int:
        """Decimals that show the spread between seeds with two digits; without one, four; of zeros, as a floor."""
        if spread := spread_between_seeds(self.found.values):
            return decimals_for(spread, 2)
        if largest := max((abs(value) for found in self.found.values.values() for value in found.values()), default=0):
            return decimals_for(largest, 4)
        floors = (abs(summarize_floor(floor).mean or 0.0) for floor in self.found.floors.values())
        return decimals_for(max(floors, default=0), 2)

    @property
    def header(self) -> list[str]:
        """The header of the table."""
        margins = ["± over documents"] * bool(self.found.margins)
        rest = ["p (corrected)", f"against `{self.found.baseline}`"]
        if self.found.is_success_rate:
            return ["variant", "success [95% interval]", "mean", *margins, "minus the baseline", *rest]
        return ["variant", "mean [95% interval]", "seeds", *margins, "minus the baseline [95% interval]", *rest]

    def rows(self) -> list[list[str]]:
        """Returns the table: a row a variant, and a row a floor."""
        found, rows = self.found, []
        for variant in found.variants:
            if variant not in found.values:
                rows.append([f"`{variant}`", "not measured", *[NONE] * (len(self.header) - 2)])
                continue
            pair = found.to_baseline.get(variant)
            cells = [NONE] * 3
            if pair is not None:
                cells = [with_interval(pair), probability(pair.corrected), text(found.verdict(pair))]
            elif variant in found.at_floor:  # the baseline
                cells[2] = text(f"no better than {found.at_floor[variant]}")
            rows.append([f"`{variant}`", *self._level(variant), *cells])
        for floor, value in found.floors.items():
            cells = self._mean(summarize_floor(value))
            if found.is_success_rate:
                cells.reverse()
            rows.append([f"*{text(floor)}*", *cells, *[NONE] * (len(self.header) - 4), "floor"])
        return rows

    def _mean(self, summary: Summary) -> list[str]:
        return [with_interval(summary, self.decimals), str(summary.num_seeds or NONE)]

    def _level(self, variant: str) -> list[str]:
        found, summary = self.found, summarize(self.found.values[variant])
        cells = self._mean(summary)
        if found.is_success_rate:
            good, runs = found.counts[variant]
            share = summarize_share(good, runs)
            interval = "" if share.low is None else f" [{number(share.low, 2)}, {number(share.high, 2)}]"
            cells = [f"{good} of {runs} seeds{interval}", number(summary.mean, self.decimals)]
        if found.margins:
            margin = found.margins.get(variant)
            cells.append(NONE if margin is None else f"± {number(margin, decimals_for(margin, 2))}")
        return cells

    def summary(self) -> list[str]:
        """Returns the row of the first table: which variants differ from the baseline, the largest difference first."""
        found = self.found
        kinds = ("better", "worse", "no significant difference", "no better than a floor", "no test")
        names: dict[str, list[str]] = {kind: [] for kind in kinds}
        for variant, pair in sorted(found.to_baseline.items(), key=lambda item: -abs(item[1].mean or 0.0)):
            kind, remark = found.kind(pair), text(found.at_floor.get(variant, ""))
            if kind in ("better", "worse"):
                decimals = 2 if found.is_success_rate else self.decimals
                weak = ", below the detectable difference" if pair.is_below_detectable else ""
                remark = number(pair.mean, decimals, sign=True) + weak
            names[kind].append(f"`{variant}`" + f" ({remark})" * bool(remark))
        sizes = [pair.detectable for pair in found.to_baseline.values() if pair.detectable is not None]
        shown = dict.fromkeys(number(size, decimals_for(size, 2)) for size in (min(sizes), max(sizes))) if sizes else ()
        detectable = f"about {' to '.join(shown)}" if shown else NONE
        return [found.title, *(", ".join(of) or NONE for of in names.values()), detectable]

    def notes(self) -> str:
        """Returns the name of the tests, and why tests are missing."""
        pairs = self.found.to_baseline
        tests = dict.fromkeys(pair.test for pair in pairs.values() if pair.test)
        notes = [f"Test: {', '.join(tests)}."] if tests else []
        notes += [f"No test of `{name}`: {pair.reason}." for name, pair in pairs.items() if pair.reason]
        if self.found.is_success_rate and pairs:
            seeds = max(runs for _, runs in self.found.counts.values())
            extreme = {name: (seeds * (name != self.found.baseline), seeds) for name in self.found.counts}
            best = compare_shares(self.found.baseline, extreme, families=self.families)
            if seeds and not any(pair.sign for pair in best.values()):
                notes.append(f"Even {seeds} of {seeds} seeds against 0 would not be beyond noise: use more seeds.")
        return " ".join(notes)


@dataclasses.dataclass(frozen=True)
class SweepText:
    """The sweep of a field as Markdown: the first measure of each value and variant, and the order at each value."""

    results: Results
    measure: Measured
    field: str

    @property
    def _tried(self) -> dict[tuple[str, str], Outcome]:
        return {(run.variant, str(run.value)): run for run in self.results.sweeps if run.field == self.field}

    @property
    def variants(self) -> list[str]:
        """The variants with a sweep of the field."""
        swept = {run.variant for run in self._tried.values()}
        return [name for name in self.results.study.variants if name in swept]

    @property
    def header(self) -> list[str]:
        """The header of the columns of variants."""
        baseline = self.results.study.baseline
        return [f"`{name}`" + " (baseline)" * (name == baseline) for name in self.variants]

    def _sign(self, variant: str, value: str) -> str:
        """Returns "better", "worse" or "tied": the run at the value compared with the baseline's at the same value."""
        name, baseline = self.measure.name, self.measure.baseline
        runs = [self._tried.get((one, value)) for one in (variant, baseline)]
        scores = [run.values[name] for run in runs if run is not None and name in run.values]
        if variant == baseline or self.measure.is_own or len(scores) < 2:
            return ""
        if scores[0] == scores[1]:
            return "tied"
        return "better" if (scores[0] > scores[1]) == (self.measure.better == "higher") else "worse"

    def rows(self) -> list[list[str]]:
        """Returns a row a value."""
        tried, chosen = self._tried, self._chosen()
        values = {str(run.value): run.value for run in tried.values()}
        if all(isinstance(value, int | float) for value in values.values()):
            values = dict(sorted(values.items(), key=lambda item: item[1]))
        rows = []
        for value in values:
            cells = []
            for variant in self.variants:
                run = tried.get((variant, value))
                if run is None or run.state == "missing":
                    cells.append(NONE)
                elif self.measure.name not in run.values:
                    cells.append(text(f"{run.state}: {run.reason}"))
                else:
                    score, sign = f"{run.values[self.measure.name]:.4g}", self._sign(variant, value)
                    score = f"**{score}**" if chosen.get(variant) == value else score
                    cells.append(score + f" ({sign})" * bool(sign))
            rows.append([text(value), *cells])
        return rows

    def _chosen(self) -> dict[str, str]:
        """Returns variant -> the value of its complete runs."""
        runs = [run for run in self.results.outcomes if self.field in run.swept]
        return {run.variant: str(run.swept[self.field]) for run in runs}

    def at_the_end(self) -> list[str]:
        """Returns the variants whose chosen value is the least or the greatest that was tried."""
        found = []
        for variant, value in self._chosen().items():
            tried = [run.value for (name, _), run in self._tried.items() if name == variant]
            is_ordered = tried and all(isinstance(one, int | float) for one in tried)
            if is_ordered and value in (str(min(tried)), str(max(tried))):
                found.append(f"`{variant}` ({value})")
        return found

    def notes(self) -> str:
        """Returns what the reader must know of the sweep."""
        notes = []
        if at_the_end := self.at_the_end():
            notes.append(f"Chosen at the end of the sweep: {', '.join(at_the_end)}. A better value may lie outside.")
        for variant in self.variants:
            signs = {self._sign(variant, str(run.value)) for run in self._tried.values() if run.variant == variant}
            if {"better", "worse"} <= signs:
                notes.append(f"Whether `{variant}` is better than the baseline depends on the value.")
        if self.measure.is_own:
            notes.append("What is scored differs, so variants do not compare.")
        return " ".join(notes)
