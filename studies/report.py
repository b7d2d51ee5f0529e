"""The report of a study: report.md, from report.md.jinja, and its figures."""

import collections
import dataclasses
import math
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contract.errors import ConfigError
from files.atomic import write_text
from studies.plot import draw_losses, draw_values, import_pyplot
from studies.results import Results
from studies.statistics import ALPHA, Comparison, Summary, Values, compare_each, smallest_detectable, summarize
from studies.study import Published, Study, Variant

# Overrides that change over which tokens a run's own loss is, how the loss is computed, or the vocabulary. A single
# stack's rows hold inputs and targets, so its windows have other lengths.
_SCORED_BY = re.compile(
    r"(objective|loss)\.|model\.architecture|data\.(tokenizer|num_sentinels|mode_tokens|append_special_tokens"
    r"|decoder_start_token|inputs_length|targets_length|documents|examples_per_row|packing|on_unusable)"
)
_NONE = "–"


def import_report_libraries() -> Any:
    """Returns jinja2, and imports matplotlib. Raises ConfigError if one of them is not installed."""
    import_pyplot()
    try:
        import jinja2
    except ImportError:
        raise ConfigError("a report needs jinja2: pip install -e '.[plot]'") from None
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
        if measure.figure:
            label = f"{measure.name} ({measure.better} is better)"
            draw_values(str(out / measure.figure), label, measure.values, study.baseline)
    curves = {name: [vars(run.curve) for run in results.of(name) if run.curve.loss] for name in study.variants}
    curves = {name: found for name, found in curves.items() if found}
    if curves:
        draw_losses(str(figures / "curves.svg"), curves)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), trim_blocks=False)
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"text": text, "code": code, "large": large, "fields": _fields}
    orders = [order for measure in measures for order in published_orders(study, measure)]
    counts = collections.Counter(order.verdict for order in orders)
    untimed = [measure for measure in measures if not measure.is_timed]
    page = environment.get_template("report.md.jinja").render(
        results=results,
        study=study,
        untimed=untimed,
        timed=[measure for measure in measures if measure.is_timed],
        headline=_headline(results, untimed),
        summary=[measure.summary() for measure in untimed if measure.pairs],
        problems=[[f"`{p.variant}`", str(p.seed), p.state, text(p.reason)] for p in results.problems],
        confounders=[[f"`{field}`", *map(text, map(str, values))] for field, values in results.confounders.items()],
        curves="figures/curves.svg" if curves else "",
        objectives_differ=objectives_differ(study, curves),
        orders=[_order_row(order) for order in orders],
        counts=text(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())),
        sweeps=_sweep_rows(results),
        samples=_samples(results),
        variants=[_variant_row(name, results) for name in study.variants],
        values=[
            [f"`{run.variant}`", str(run.seed), *(number(run.values.get(m.name), 1 + m.decimals) for m in untimed)]
            for run in results.outcomes
        ],
        commands="\n\n".join("\n".join(run.commands) for run in results.outcomes if run.commands),
        environment=_environment(results),
        seconds=[_seconds_row(name, results) for name in study.variants if results.of(name)],
    )
    report = out / "report.md"
    write_text(report, re.sub(r"\n{3,}", "\n\n", _visible(page)).strip() + "\n")
    return report


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the runs say about one measure.

    Attributes:
      fields: of the study's measure.
      is_own: each run is scored on its own objective and the objectives differ, so that variants do not compare.
      variants: of the study; those that are not in `values` are not measured (`only`).
      values: variant -> seed -> value, finite ones alone.
      lacking: variant -> complete runs without a finite value, such as a loss that was not reached; only where there
        are any. Such a variant has no test, because its worst runs are left out of its mean.
      pairs: two variants -> their comparison (statistics.compare_each); {} if `is_own`.
    """

    name: str
    fields: Mapping[str, Any]
    baseline: str
    is_own: bool
    variants: Sequence[str]
    values: Mapping[str, Values]
    lacking: Mapping[str, int]
    pairs: Mapping[tuple[str, str], Comparison]

    @property
    def better(self) -> str:
        """Which values are better, "higher" or "lower"."""
        return self.fields["better"]

    @property
    def is_timed(self) -> bool:
        """Whether values depend on the speed of the machine."""
        return self.fields["kind"] == "throughput"

    @property
    def figure(self) -> str:
        """The path of its figure; "" where no run has a value."""
        return f"figures/{self.name}.svg" if any(self.values.values()) else ""

    @property
    def description(self) -> str:
        """The fields that say how it is taken."""
        return _fields({name: value for name, value in self.fields.items() if value and name not in ("better", "only")})

    @property
    def to_baseline(self) -> dict[str, Comparison]:
        """Variant -> the variant minus the baseline."""
        return {first: pair for (first, second), pair in self.pairs.items() if second == self.baseline}

    @property
    def detectable(self) -> str:
        """The smallest difference from the baseline that the study finds with a probability of 80%."""
        smallest = smallest_detectable([*self.to_baseline.values()])
        return _NONE if smallest is None else f"about {number(smallest, _decimals_for(smallest, 2))}"

    @property
    def decimals(self) -> int:
        """Decimals that show the spread between seeds with two digits; without a spread, four digits."""
        spreads = [statistics.stdev(found.values()) for found in self.values.values() if len(found) > 1]
        if spreads := [spread for spread in spreads if spread > 0]:
            return _decimals_for(statistics.median(spreads), 2)
        return _decimals_for(max((abs(v) for found in self.values.values() for v in found.values()), default=0), 4)

    def verdict(self, pair: Comparison) -> str:
        """Returns "better" or "worse" for a first variant that is so beyond noise, "not told apart", or "no test"."""
        if pair.p is None:
            return "no test"
        sign = pair.sign if self.better == "higher" else -pair.sign
        return {1: "better", 0: "not told apart", -1: "worse"}[sign]

    def rows(self) -> list[list[str]]:
        """Returns the table, a row a variant."""
        rows = []
        for variant in self.variants:
            if variant not in self.values:
                rows.append([f"`{variant}`", "not measured", *[_NONE] * 4])
                continue
            found, pair = summarize(self.values[variant]), self.to_baseline.get(variant)
            cells = (
                [_NONE] * 3 if pair is None else [with_interval(pair), probability(pair.corrected), self.verdict(pair)]
            )
            rows.append([f"`{variant}`", with_interval(found, self.decimals), str(found.num_seeds), *cells])
        return rows

    def summary(self) -> list[str]:
        """Returns the row of the first table: which variants differ from the baseline, the largest difference first."""
        names: dict[str, list[str]] = {"better": [], "worse": [], "not told apart": [], "no test": []}
        for variant, pair in sorted(self.to_baseline.items(), key=lambda item: -abs(item[1].mean or 0.0)):
            size = f" ({number(pair.mean, self.decimals, sign=True)})" if pair.sign else ""
            names[self.verdict(pair)].append(f"`{variant}`{size}")
        return [
            f"`{self.name}` ({self.better})",
            *(", ".join(found) or _NONE for found in names.values()),
            self.detectable,
        ]

    def notes(self) -> str:
        """Returns why tests are missing."""
        notes = [f"No test of `{name}`: {pair.reason}." for name, pair in self.to_baseline.items() if pair.reason]
        notes += [f"`{name}`: complete runs without a value: {count}." for name, count in self.lacking.items()]
        return " ".join(notes)


def analyse(results: Results) -> list[Measured]:
    """Returns what the runs say about each measure that has values, in the order of the study."""
    study, measures = results.study, []
    for name in study.compared:
        fields, values, lacking = study.measures[name], {}, {}
        for variant in study.measured(name):
            runs = results.of(variant)
            values[variant] = {run.seed: run.values[name] for run in runs if name in run.values}
            if len(runs) > len(values[variant]):
                lacking[variant] = len(runs) - len(values[variant])
        own = fields["kind"] in ("heldout", "tokens_to_loss") and not fields.get("config")
        is_own = own and objectives_differ(study, values)
        pairs = {} if is_own else compare_each(study.baseline, values, lacking)
        measures.append(Measured(name, fields, study.baseline, is_own, [*study.variants], values, lacking, pairs))
    return measures


def objectives_differ(study: Study, variants: Iterable[str]) -> bool:
    """Returns whether the own losses of `variants` are over different tokens, or may be.

    They may be if the variants have different configs or presets, or different overrides of fields that change the
    loss or its tokens. Two configs that set such fields to the same values count as different.
    """

    def objective(name: str) -> str:
        variant = study.variants[name]
        fields = study.overrides | variant.overrides | variant.sweep
        scored_by = sorted((field, repr(value)) for field, value in fields.items() if _SCORED_BY.match(field))
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
                f"{outcome.heldout_digest}), so their values do not compare: train them on one corpus and split"
            )


def _headline(results: Results, measures: Sequence[Measured]) -> str:
    names = ", ".join(f"`{field}`" for field in results.confounders)
    confounded = (
        f"**Confounded: the variants also differ in {names}, so no difference below is the effect of the question "
        "alone.** "
    )
    complete, tested = len(results.outcomes), [p for m in measures for p in m.to_baseline.values() if p.p is not None]
    versions = "; ".join(f"code {text(code)}: {text(', '.join(runs))}" for code, runs in results.versions.items())
    mixed = f"**Mixed code: the runs do not share one version of the source code ({versions}).** "
    prefix = mixed * bool(versions) + confounded * bool(names)
    return prefix + (
        f"{complete} of {complete + len(results.problems)} runs are complete. {sum(p.sign != 0 for p in tested)} of "
        f"{len(tested)} differences from the baseline that can be tested are beyond the noise between seeds."
    )


@dataclasses.dataclass(frozen=True)
class Order:
    """Two variants in a paper, which says that `first` is better, and in the study. ours: first minus second."""

    published: Published
    first: str
    second: str
    ours: Comparison
    verdict: str


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
            verdict = verdict if is_beyond_noise else "within the paper's noise"
            orders.append(Order(result, first, second, ours, verdict))
    return orders


def _order_row(order: Order) -> list[str]:
    result, names = order.published, (order.first, order.second)
    there = ", ".join(f"{result.values[name]:g}" for name in names if name in result.values) or "the order alone"
    verdict = f"{order.verdict} ({order.ours.reason})" if order.ours.reason else order.verdict
    cells = [text(result.source), text(result.metric), *(f"`{name}`" for name in names), there, f"`{result.measure}`"]
    return [*cells, with_interval(order.ours), probability(order.ours.corrected), text(verdict)]


def _sweep_rows(results: Results) -> list[list[str]]:
    chosen = {(run.variant, field, value) for run in results.outcomes for field, value in run.swept.items()}
    measure, rows = results.study.compared[0], []
    for tried in results.sweeps:
        score = f"{tried.values[measure]:.4g}" if measure in tried.values else text(f"{tried.state}: {tried.reason}")
        is_chosen = (tried.variant, tried.field, tried.value) in chosen
        row = [f"`{tried.variant}`", f"`{tried.field}`", text(str(tried.value)), score]
        rows.append([*row, "chosen" if is_chosen else ""])
    return rows


def _samples(results: Results) -> list[tuple[str, str]]:
    """Returns (title, texts) of the first complete run of each variant that has samples."""
    first = {run.variant: run for run in reversed(results.outcomes) if run.samples}
    return [
        (f"{measure}: {name}, seed {first[name].seed}", "\n\n".join(f"prompt: {p}\n{t}" for p, t in texts.items()))
        for name in results.study.variants
        if name in first
        for measure, texts in first[name].samples.items()
    ]


def _variant_row(name: str, results: Results) -> list[str]:
    """Returns how a variant trains, and the means over its runs."""
    study, runs = results.study, results.of(name)
    totals = [
        large(statistics.fmean(getattr(run, total) for run in runs)) if runs else _NONE
        for total in ("num_params", "steps", "raw_tokens", "flops")
    ]
    return [f"`{name}`", f"`{study.config_of(name)}`", text(_difference(study.variants[name])), *totals]


def _difference(variant: Variant) -> str:
    fields = variant.overrides | {f"sweep of {field}": [*values] for field, values in variant.sweep.items()}
    if (start := variant.start) is not None:
        fields |= {"start": f"{start.config}, {start.share:.0%} of the budget"}
        fields |= {f"start: {field}": value for field, value in start.overrides.items()}
    return _fields(fields) or _NONE


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{field}={value}`" for field, value in fields.items())


def _environment(results: Results) -> list[list[str]]:
    """Returns what the runs were trained on; different values of a name are joined by "; "."""
    found = list(dict.fromkeys(item for run in results.outcomes for item in run.environment.items()))
    return [[name, text("; ".join(v for other, v in found if other == name))] for name in dict(found)]


def _seconds_row(variant: str, results: Results) -> list[str]:
    seconds = [run.seconds for run in results.of(variant)]
    return [f"`{variant}`", *(number(f(seconds), 0) for f in (statistics.fmean, min, max))]


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
    """Returns `page` with characters that an editor does not show as Python escapes, such as \\x00."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else ascii(c)[1:-1] for c in page)


def _decimals_for(value: float, digits: int) -> int:
    """Returns the decimals that show `value` with so many digits; 0.000999... that rounding made counts as 0.001."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)) + 1e-9)) if value else 0


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Returns `value` with thousands separators and a true minus; "–" for None. sign: write "+" too."""
    if value is None:
        return _NONE
    plus = "+" if sign else ""
    shown = f"{value:{plus},.{decimals}f}" if decimals <= 6 else f"{value:{plus}.3g}"
    return shown.replace("-", "−")


def with_interval(found: Summary | Comparison, decimals: int = 0) -> str:
    """Returns a mean, or a difference with its sign, with its interval, if any, such as "1.20 [1.10, 1.30]".

    decimals: of a mean; a difference has those that show its own spread with two digits.
    """
    if is_difference := isinstance(found, Comparison):
        decimals = _decimals_for(found.spread or found.mean or 0.0, 2)
    mean, *ends = (number(value, decimals, sign=is_difference) for value in (found.mean, found.low, found.high))
    return mean if found.low is None else f"{mean} [{', '.join(ends)}]"


def probability(p: float | None) -> str:
    """Returns a p value with three decimals. One that is below ALPHA does not look equal to it."""
    if p is None:
        return _NONE
    limit = next((limit for limit in (0.001, ALPHA) if p < limit <= max(round(p, 3), 0.001)), None)
    return f"{p:.3f}" if limit is None else rf"\< {limit}"


def large(value: float) -> str:
    """Returns a number with three or four digits, such as "2.78B", "1M", "3.2e15" or "0.3478"."""
    value = float(f"{value:.3g}") if value >= 1e3 else value  # 999,936 is 1M, not 1000k
    for suffix, unit, smallest in (("T", 1e12, 1e12), ("B", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if smallest <= value < 1e15:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.4g}".replace("e+", "e")
