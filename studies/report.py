"""The report of a study: report.md, from report.md.jinja, and its figures."""

import collections
import dataclasses
import math
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contract.errors import ConfigError
from files.atomic import write_text
from studies.plot import COLOURS, import_pyplot
from studies.results import Curve, Results
from studies.statistics import (
    ALPHA,
    Comparison,
    Summary,
    Values,
    compare_each,
    smallest_detectable,
    summarize,
)
from studies.study import Published, Study, Variant

# Overrides that change over which tokens a run's own loss is, how the loss is computed, or the vocabulary.
_SCORED_BY = (
    "objective.",
    "loss.",
    "data.tokenizer",
    "data.num_sentinels",
    "data.mode_tokens",
    "data.append_special_tokens",
    "data.decoder_start_token",
    "data.inputs_length",
    "data.targets_length",
    "data.documents",
    "data.examples_per_row",
    "data.packing",
    "data.on_unusable",
    "model.architecture",  # a single stack's rows hold inputs and targets, so its windows have other lengths
)
_SHARES = ("accuracy", "f1", "exact_match")  # metrics whose values are shares, by the end of their names
_AXES = {"raw_tokens": "raw tokens of text", "flops": "model FLOPs"}
_EARLY = 0.5  # of the training: its losses do not set the range of the vertical axis
_MOST_DECIMALS = 6
_NONE = "–"
# All that an editor does not show, but for tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def import_report_libraries() -> Any:
    """Returns jinja2, and imports matplotlib. Raises ConfigError if one of them is not installed."""
    import_pyplot("train.ablate")
    try:
        import jinja2
    except ImportError:
        raise ConfigError("train.ablate needs jinja2: pip install -e '.[plot]'") from None
    return jinja2


def write_report(results: Results, out: pathlib.Path) -> pathlib.Path:
    """Writes report.md and figures/*.svg to the folder `out`, and returns the path of the report.

    Equal results give equal files; where only times differ, only the section on times does.

    Raises ConfigError if two runs were scored on different held-out text, and without matplotlib or jinja2.
    """
    jinja2 = import_report_libraries()
    check_same_heldout(results)
    study, figures = results.study, out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.svg"):  # of an earlier report with other figures
        old.unlink()
    measures = analyse(results)
    for measure in measures:
        if any(measure.values.values()):
            measure.figure = f"figures/{measure.name}.svg"
            _draw_measure(measure, out / measure.figure)
    drawn = [variant for variant in study.variants if any(outcome.curve.loss for outcome in results.of(variant))]
    if drawn:
        _draw_curves(results, drawn, figures / "curves.svg")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), trim_blocks=False)
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"text": text, "code": code, "large": large, "fields": _fields}
    orders = [order for measure in measures for order in published_orders(study, measure)]
    counts = collections.Counter(order.verdict for order in orders)
    compared = [measure for measure in measures if not measure.is_own and not measure.is_timed]
    page = environment.get_template("report.md.jinja").render(
        results=results,
        study=study,
        measures=measures,
        headline=_headline(results, compared),
        summary=[measure.summary() for measure in compared if measure.pairs],
        problems=[[f"`{p.variant}`", str(p.seed), p.state, text(p.reason)] for p in results.problems],
        curves="figures/curves.svg" if drawn else "",
        objectives_differ=objectives_differ(study, drawn),
        orders=[_order_row(order) for order in orders],
        counts=text(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())),
        sweeps=_sweep_rows(results),
        samples=_samples(results),
        variants=[_variant_row(name, results) for name in study.variants],
        values_header=[f"`{measure.name}`" for measure in measures if not measure.is_timed],
        values=_value_rows(results, [measure for measure in measures if not measure.is_timed]),
        commands="\n\n".join("\n".join(outcome.commands) for outcome in results.outcomes if outcome.commands),
        environment=_environment(results),
        seconds=_seconds(results),
    )
    report = out / "report.md"
    write_text(report, re.sub(r"\n{3,}", "\n\n", _visible(page)).strip() + "\n")
    return report


@dataclasses.dataclass
class Measured:
    """What the runs say about one measure.

    Attributes:
      better: "higher" or "lower".
      is_own: each run is scored on its own objective and the objectives differ, so that variants do not compare.
      is_timed: whether values depend on the speed of the machine.
      range: the largest difference that is possible, for a measure that is a share; infinite for others.
      variants: of the study; those that are not in `values` are not measured (`only`).
      values: variant -> seed -> value, finite ones alone.
      lacking: variant -> complete runs without a finite value, such as a loss that was not reached; only where there
        are any. Such a variant has no test, because its worst runs are left out of its mean.
      pairs: two variants -> their comparison (statistics.compare_each); {} if `is_own`.
      detectable: the smallest difference from the baseline that the study finds with a probability of 80%, or None.
      figure: its path.
    """

    name: str
    description: str
    better: str
    baseline: str
    is_own: bool
    is_timed: bool
    range: float
    variants: Sequence[str]
    values: Mapping[str, Values]
    lacking: Mapping[str, int]
    pairs: Mapping[tuple[str, str], Comparison]
    detectable: float | None = None
    figure: str = ""

    @property
    def to_baseline(self) -> dict[str, Comparison]:
        """Variant -> the variant minus the baseline."""
        return {first: pair for (first, second), pair in self.pairs.items() if second == self.baseline}

    def verdict(self, pair: Comparison) -> str:
        """Returns "better" or "worse" for a first variant that is so beyond noise, "not told apart", or "no test"."""
        if pair.p is None:
            return "no test"
        sign = pair.sign if self.better == "higher" else -pair.sign
        return {1: "better", 0: "not told apart", -1: "worse"}[sign]

    @property
    def decimals(self) -> int:
        """Decimals that show the spread between seeds with two digits; without a spread, four digits."""
        spreads = [statistics.stdev(found.values()) for found in self.values.values() if len(found) > 1]
        if spreads := [spread for spread in spreads if spread > 0]:
            return _decimals_for(statistics.median(spreads), 2)
        return _decimals_for(max((abs(v) for found in self.values.values() for v in found.values()), default=0), 4)

    def rows(self) -> list[list[str]]:
        """Returns the table, a row a variant."""
        rows = []
        for variant in self.variants:
            if variant not in self.values:
                rows.append([f"`{variant}`", "not measured", *[_NONE] * 4])
                continue
            found, pair = summarize(self.values[variant]), self.to_baseline.get(variant)
            cells = ["baseline" if variant == self.baseline else _NONE, _NONE, _NONE]
            if pair is not None:
                cells = [with_interval(pair, self.decimals, sign=True), probability(pair.corrected), self.verdict(pair)]
            rows.append([f"`{variant}`", with_interval(found, self.decimals), str(found.num_seeds), *cells])
        return rows

    def summary(self) -> list[str]:
        """Returns the row of the first table: which variants differ from the baseline, the largest difference first."""
        names: dict[str, list[str]] = {"better": [], "worse": [], "not told apart": [], "no test": []}
        for variant, pair in sorted(self.to_baseline.items(), key=lambda item: -abs(item[1].mean or 0.0)):
            differs = pair.sign and pair.mean is not None
            size = f" ({number(pair.mean, self.decimals, sign=True)})" if differs else ""
            names[self.verdict(pair)].append(f"`{variant}`{size}")
        untold = [*names["not told apart"], *(f"{name} (no test)" for name in names["no test"])]
        cells = [", ".join(found) or _NONE for found in (names["better"], names["worse"], untold)]
        return [f"`{self.name}` ({self.better} is better)", *cells, self._detectable()]

    def _detectable(self) -> str:
        if self.detectable is None:
            return _NONE
        size = f"about {number(self.detectable, _decimals_for(self.detectable, 2))}"
        return f"{size}, more than is possible" if self.detectable > self.range else size

    def notes(self) -> str:
        """Returns what is not in the table: tests that there are none of, with the reasons."""
        notes = [f"Smallest detectable difference from the baseline: {self._detectable()}."] if self.detectable else []
        for variant, pair in self.to_baseline.items():
            if pair.reason:
                notes.append(f"No test of `{variant}`: {pair.reason}.")
        notes += [f"`{name}`: complete runs without a value: {count}." for name, count in self.lacking.items()]
        return " ".join(notes)


def analyse(results: Results) -> list[Measured]:
    """Returns what the runs say about each measure that has values, in the order of the study."""
    study, measures = results.study, []
    for name in study.compared:
        fields = study.measures[name]
        values, lacking = {}, {}
        for variant in study.measured(name):
            runs = results.of(variant)
            values[variant] = {run.seed: run.values[name] for run in runs if name in run.values}
            if len(runs) > len(values[variant]):
                lacking[variant] = len(runs) - len(values[variant])
        own = fields["kind"] in ("heldout", "tokens_to_loss") and not fields.get("config")
        is_own = own and objectives_differ(study, values)
        pairs = {} if is_own else compare_each(study.baseline, values, lacking)
        measures.append(
            Measured(
                name=name,
                description=_describe(fields),
                better=fields["better"],
                baseline=study.baseline,
                is_own=is_own,
                is_timed=fields["kind"] == "throughput",
                range=1.0 if str(fields.get("metric", "")).endswith(_SHARES) else math.inf,
                variants=list(study.variants),
                values=values,
                lacking=lacking,
                pairs=pairs,
                detectable=smallest_detectable([pair for pair in pairs.values() if pair.second == study.baseline]),
            )
        )
    return measures


def objectives_differ(study: Study, variants: Iterable[str]) -> bool:
    """Returns whether the own losses of `variants` are over different tokens, or may be.

    They may be if the variants have different configs or presets, or different overrides of fields that change the
    loss or its tokens. Two configs that set such fields to the same values count as different.
    """

    def objective(name: str) -> str:
        variant = study.variants[name]
        fields = study.overrides | variant.overrides | variant.sweep
        scored_by = sorted((field, repr(value)) for field, value in fields.items() if field.startswith(_SCORED_BY))
        return repr((study.config_of(name), scored_by))

    return len({objective(variant) for variant in variants}) > 1


def check_same_heldout(results: Results) -> None:
    """Raises ConfigError if two runs were scored on different held-out text."""
    for outcome in results.outcomes:
        first = results.outcomes[0]
        if outcome.heldout_digest != first.heldout_digest:
            raise ConfigError(
                f"study {results.study.name}: the runs of {first.variant}, seed {first.seed}, and {outcome.variant}, "
                f"seed {outcome.seed}, hold out different text (heldout_digest {first.heldout_digest} and "
                f"{outcome.heldout_digest}), so their values do not compare: give all variants the same fields "
                "data.source, path, heldout_fraction, split_seed, split_by and heldout_path"
            )


def _headline(results: Results, compared: Sequence[Measured]) -> str:
    complete, total = len(results.outcomes), len(results.outcomes) + len(results.problems)
    parts = [f"{complete} of {total} runs are complete, so this can change."] if results.problems else []
    pairs = [pair for measure in compared for pair in measure.to_baseline.values()]
    tested = [pair for pair in pairs if pair.p is not None]
    if not compared:
        parts.append("No measure compares the variants: each run is scored on its own objective.")
    elif not tested:
        parts.append("No difference from the baseline can be tested, so the numbers support no order of the variants.")
    else:
        beyond = sum(pair.sign != 0 for pair in tested)
        parts.append(
            f"{beyond} of {len(tested)} differences from the baseline that can be tested are beyond the noise between "
            "seeds. Variants that are not told apart are not shown to be equal."
        )
    return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Order:
    """Two variants in a paper, which says that `first` is better, and in the study.

    paper: the paper's values of first and second; None if only the order is known. ours: first minus second.
    """

    published: Published
    first: str
    second: str
    paper: tuple[float, float] | None
    ours: Comparison
    verdict: str
    decimals: int


def published_orders(study: Study, measure: Measured) -> list[Order]:
    """Returns every pair of variants that the study's published results of `measure` order."""
    orders = []
    for result in study.published:
        if result.measure != measure.name:
            continue
        pairs = dict.fromkeys(result.better_than, True)  # pair -> beyond the paper's noise
        for variant in result.values if study.baseline in result.values else ():
            if variant != study.baseline:
                both = (variant, study.baseline)
                gain = result.values[variant] - result.values[study.baseline]
                if (gain < 0) == (result.better == "higher"):
                    both = both[::-1]
                pairs.setdefault(both, gain != 0 and abs(gain) >= 2 * math.sqrt(2) * result.sd)
        for (first, second), is_beyond_noise in pairs.items():
            ours = measure.pairs.get((first, second), Comparison(first, second, 0, reason="not compared here"))
            verdict = {"better": "agrees", "worse": "disagrees"}.get(measure.verdict(ours), "cannot be told")
            both_known = first in result.values and second in result.values
            paper = (float(result.values[first]), float(result.values[second])) if both_known else None
            verdict = verdict if is_beyond_noise else "within the paper's noise"
            orders.append(Order(result, first, second, paper, ours, verdict, measure.decimals))
    return orders


def _order_row(order: Order) -> list[str]:
    there = f"{order.paper[0]:g}, {order.paper[1]:g}" if order.paper else "the order alone"
    verdict = f"{order.verdict} ({order.ours.reason})" if order.ours.reason else order.verdict
    here = with_interval(order.ours, order.decimals, sign=True)
    source, metric = text(order.published.source), text(order.published.metric)
    names = f"`{order.first}`", f"`{order.second}`", there, f"`{order.published.measure}`"
    return [source, metric, *names, here, probability(order.ours.corrected), text(verdict)]


def _describe(fields: Mapping[str, Any]) -> str:
    """Returns what a measure is and how it is taken."""
    overrides = f", {_fields(fields['overrides'])}" if fields.get("overrides") else ""
    under = f" under `{fields['config']}`{overrides}" if fields.get("config") else ""
    match fields["kind"]:
        case "fine_tuning":
            return f"`{fields['metric']}` at the end of a fine-tuning of each run: `{fields['config']}`{overrides}."
        case "heldout":
            return f"`{fields['metric']}` of the held-out text{under or ', under the config of each run'}."
        case "probe":
            flags = "".join(f" --{name}={value}" for name, value in fields["fields"].items())
            return f"`{fields['metric']}` of `train.evaluate --probe={fields['probe']}{flags}`{under}."
        case "tokens_to_loss":
            return f"Raw tokens of text until the held-out loss is {fields['loss']}, linear between evaluations."
    return "Raw tokens of text per second of training steps."


def _sweep_rows(results: Results) -> list[list[str]]:
    chosen = {(run.variant, field): value for run in results.outcomes for field, value in run.swept.items()}
    measure, rows = results.study.compared[0], []
    for tried in results.sweeps:
        score = f"{tried.values[measure]:.4g}" if measure in tried.values else text(f"{tried.state}: {tried.reason}")
        is_chosen = (tried.variant, tried.field) in chosen and chosen[tried.variant, tried.field] == tried.value
        row = [f"`{tried.variant}`", f"`{tried.field}`", text(str(tried.value)), score]
        rows.append([*row, "chosen" if is_chosen else ""])
    return rows


def _samples(results: Results) -> list[tuple[str, str]]:
    """Returns (title, texts) of the first complete run of each variant that has samples."""
    first = {outcome.variant: outcome for outcome in reversed(results.outcomes) if outcome.samples}
    return [
        (f"{measure}: {name}, seed {first[name].seed}", "\n\n".join(f"prompt: {p}\n{t}" for p, t in texts.items()))
        for name in results.study.variants
        if name in first
        for measure, texts in first[name].samples.items()
    ]


def _variant_row(name: str, results: Results) -> list[str]:
    study, runs = results.study, results.of(name)
    totals = []
    for total in ("num_params", "steps", "raw_tokens", "flops"):
        found = sorted({getattr(run, total) for run in runs})
        totals.append(" to ".join(dict.fromkeys(large(value) for value in found[:: max(len(found) - 1, 1)])) or _NONE)
    return [f"`{name}`", f"`{study.config_of(name)}`", text(_difference(study.variants[name])), *totals]


def _difference(variant: Variant) -> str:
    parts = [_fields(variant.overrides)] if variant.overrides else []
    if variant.sweep:
        parts.append(f"sweep of {', '.join(f'`{field}`' for field in variant.sweep)}")
    if variant.start is not None:
        fields = f" with {_fields(variant.start.overrides)}" if variant.start.overrides else ""
        parts.append(f"the first {variant.start.share:.0%} of the budget: `{variant.start.config}`{fields}")
    return "; ".join(parts) or _NONE


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{field}={value}`" for field, value in fields.items())


def _value_rows(results: Results, measures: Sequence[Measured]) -> list[list[str]]:
    return [
        [f"`{run.variant}`", str(run.seed), *(number(run.values.get(m.name), 1 + m.decimals) for m in measures)]
        for run in results.outcomes
    ]


def _environment(results: Results) -> list[list[str]]:
    """Returns what the runs were trained on; different values of a name are joined by "; "."""
    values: dict[str, dict[str, None]] = {}
    for outcome in results.outcomes:
        for name, value in outcome.environment.items():
            values.setdefault(name, {})[value] = None
    return [[name, text("; ".join(found))] for name, found in values.items()]


def _seconds(results: Results) -> list[list[str]]:
    rows = []
    for variant in results.study.variants:
        if seconds := [outcome.seconds for outcome in results.of(variant)]:
            rows.append([f"`{variant}`", *(number(f(seconds), 0) for f in (statistics.fmean, min, max))])
    return rows


def _draw_measure(measure: Measured, path: pathlib.Path) -> None:
    """Draws means with intervals, and the value of each seed, one row a variant."""
    pyplot = import_pyplot("train.ablate")
    names = list(measure.values)
    with pyplot.rc_context({"font.size": 9, "svg.hashsalt": "cloze"}):
        figure, axes = pyplot.subplots(figsize=(7.2, 1.0 + 0.32 * len(names)), layout="constrained")
        for row, values in enumerate(measure.values.values()):
            found = summarize(values)
            axes.plot([*values.values()], [row + 0.28] * len(values), "o", ms=3.5, mfc="none", color="0.35")
            if found.low is not None:
                axes.plot([found.low, found.high], [row, row], color=COLOURS[1], linewidth=1.6)
            if found.mean is not None:
                axes.plot(found.mean, row, "o", color=COLOURS[1], markeredgecolor="black")
        baseline = summarize(measure.values[measure.baseline]).mean
        if baseline is not None and not measure.is_own:
            axes.axvline(baseline, color=COLOURS[2], linewidth=1, linestyle="--", zorder=1)
        axes.set_yticks(range(len(names)), [f"{n} (baseline)" if n == measure.baseline else n for n in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(f"{measure.name} ({measure.better} is better)")
        axes.grid(alpha=0.25)
        _save(pyplot, figure, path)


def _draw_curves(results: Results, variants: Sequence[str], path: pathlib.Path) -> None:
    """Draws the held-out loss over tokens and over FLOPs: each seed, and their mean where all have a loss."""
    pyplot = import_pyplot("train.ablate")
    with pyplot.rc_context({"font.size": 9, "svg.hashsalt": "cloze"}):
        figure, panels = pyplot.subplots(1, 2, figsize=(9.6, 4.4), sharey=True, layout="constrained")
        late: list[float] = []
        for axes, (x, label) in zip(panels, _AXES.items(), strict=True):
            for place, variant in enumerate(variants):
                curves = [outcome.curve for outcome in results.of(variant) if outcome.curve.loss]
                colour, style = COLOURS[place % len(COLOURS)], ("-", "--", ":")[place // len(COLOURS) % 3]
                for curve in curves:
                    places = np.asarray(getattr(curve, x), float)
                    axes.plot(places, curve.loss, color=colour, linewidth=0.5, alpha=0.5)
                    late += list(np.asarray(curve.loss)[places >= _EARLY * places[-1]])
                grid = np.unique(np.concatenate([getattr(curve, x) for curve in curves]))
                common = (grid >= max(getattr(c, x)[0] for c in curves)) & (
                    grid <= min(getattr(c, x)[-1] for c in curves)
                )
                mean = np.mean([np.interp(grid[common], getattr(c, x), c.loss) for c in curves], axis=0)
                axes.plot(grid[common], mean, color=colour, linestyle=style, linewidth=1.8, label=variant)
            axes.xaxis.set_major_formatter(lambda value, _: large(value))
            axes.set_xlabel(label)
            axes.grid(alpha=0.25)
        margin = 0.05 * (np.ptp(late) or abs(late[0]) or 1.0)
        panels[0].set_ylim(min(late) - margin, max(late) + margin)
        panels[0].set_ylabel("held-out loss")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        _save(pyplot, figure, path)


def _mean(curves: Sequence[Curve], x: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean loss over `x`, between the first and the last place at which all curves have a loss."""
    places = [np.asarray(getattr(curve, x), float) for curve in curves]
    grid = np.unique(np.concatenate(places)).clip(max(p[0] for p in places), min(p[-1] for p in places))
    losses = [np.interp(grid, at, curve.loss) for at, curve in zip(places, curves, strict=True)]
    return grid, np.mean(losses, axis=0)


def _save(pyplot: Any, figure: Any, path: pathlib.Path) -> None:
    try:
        figure.savefig(path, format="svg", metadata={"Date": None})
    finally:
        pyplot.close(figure)


def text(plain: str) -> str:
    """Returns Markdown that shows `plain` on one line, also in a table: only `code` is markup."""
    parts = re.split(r"(`[^`]+`)", " ".join(plain.split()))
    escaped = [part if k % 2 else re.sub(r"[\\*_#~$<&\[\]`]", r"\\\g<0>", part) for k, part in enumerate(parts)]
    return "".join(escaped).replace("|", "\\|")


def code(plain: str) -> str:
    """Returns a block of code that shows `plain` as it is."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}\n{plain}\n{fence}"


def _visible(page: str) -> str:
    """Returns `page` with control characters and lone surrogates as Python escapes, such as \\x00."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), page)


def _decimals_for(value: float, digits: int) -> int:
    """Returns the decimals that show `value` with so many digits; 0.000999... that rounding made counts as 0.001."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)) + 1e-9)) if value else 0


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns `value` with thousands separators and a true minus; "–" for None. sign: write "+" too."""
    if value is None:
        return _NONE
    plus = "+" if sign else ""
    shown = f"{value:{plus},.{decimals}f}" if decimals <= _MOST_DECIMALS else f"{value:{plus}.3g}"
    return shown.replace("-", "−")


def with_interval(found: Summary | Comparison, decimals: int, *, sign: bool = False) -> str:
    """Returns a mean with its interval, if any, such as "1.20 [1.10, 1.30]".

    decimals: of a mean; a difference has those that show its own spread with two digits.
    """
    if isinstance(found, Comparison) and found.spread:
        decimals = _decimals_for(found.spread, 2)
    shown = number(found.mean, decimals, sign=sign)
    if found.low is None:
        return shown
    return f"{shown} [{number(found.low, decimals, sign=sign)}, {number(found.high, decimals, sign=sign)}]"


def probability(p: float | None) -> str:
    """Returns a p value with three decimals. One that is below ALPHA does not look equal to it."""
    if p is None:
        return _NONE
    shown = f"{p:.3f}"
    if p < 0.001:
        return r"\< 0.001"
    return rf"\< {ALPHA}" if p < ALPHA <= float(shown) else shown


def large(value: float) -> str:
    """Returns a number with three or four digits, such as "2.78B", "1M", "3.2e15" or "0.3478"."""
    value = float(f"{value:.3g}") if value >= 1e3 else value  # 999,936 is 1M, not 1000k
    for suffix, unit, smallest in (("T", 1e12, 1e12), ("B", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if smallest <= value < 1e15:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.4g}".replace("e+", "e")
