"""The report of a study: report.md, from report.md.jinja, and its figures."""

import collections
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from command.program import plural, visible
from contract.errors import ConfigError
from files.atomic import write_text
from studies.analysis import Measured, Order, analyse, count_families, objectives_differ, published_orders
from studies.markdown import NONE, code, fields_text, large, number, probability, text, with_interval
from studies.plot import draw_losses, import_pyplot
from studies.results import Results
from studies.statistics import MIN_SEEDS
from studies.study import Variant
from studies.tables import MeasureText, SweepText


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

    Raises ConfigError without matplotlib or jinja2.
    """
    import_report_libraries()
    study, figures = results.study, out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    measures = [MeasureText(measure, count_families(results)) for measure in analyse(results)]
    for measure in measures:
        if measure.figure:
            measure.draw(out / measure.figure)
    curves, lowest = curves_of(results), lowest_losses(results)
    if curves:
        draw_losses(str(figures / "curves.svg"), curves)
    drawn = [measure.figure for measure in measures if measure.figure] + ["figures/curves.svg"] * bool(curves)
    remove_figures(figures, keep={pathlib.Path(figure).name for figure in drawn})
    untimed = [measure for measure in measures if not measure.found.is_timed]
    orders = [order for measure in measures for order in published_orders(study, measure.found)]
    swept = dict.fromkeys(run.field for run in results.sweeps)
    sweeps = [SweepText(results, measures[0].found, field) for field in swept]
    page = render(
        "report.md.jinja",
        results=results,
        study=study,
        families=count_families(results),
        untimed=untimed,
        timed=[measure for measure in measures if measure.found.is_timed],
        headline=headline(results, [measure.found for measure in untimed], sweeps),
        summary=[measure.summary() for measure in untimed if measure.found.pairs],
        problems=[[f"`{p.variant}`", str(p.seed), p.state, text(p.reason)] for p in results.problems],
        confounders=_field_rows(results.confounders),
        questions=_field_rows(results.questions),
        curves="figures/curves.svg" if curves else "",
        lowest=[
            [f"`{variant}`", number(of.loss, 3), large(of.raw_tokens), number(of.last, 3)]
            for variant, of in lowest.items()
            if any(other.is_earlier for other in lowest.values())
        ],
        objectives_differ=objectives_differ(results, curves),
        orders=[_order_row(order) for order in orders],
        counts=_count(order.verdict for order in orders),
        sweeps=sweeps,
        variants=[variant_row(name, results) for name in study.variants],
        values=[
            [
                f"`{run.variant}`",
                str(run.seed),
                *(number(run.values.get(m.found.name), 1 + m.decimals) for m in untimed),
            ]
            for run in [*results.outcomes, *results.scratch]
        ],
        commands="\n\n".join("\n".join(run.commands) for run in results.outcomes if run.commands),
        environment=_environment(results),
        seconds=[_seconds_row(name, results) for name in study.variants if results.of(name)],
    )
    report = out / "report.md"
    write_text(report, page)
    return report


def remove_figures(folder: pathlib.Path, *, keep: Set[str]) -> None:
    """Removes the figures of an earlier page, which other workers may remove at the same time. keep: their names."""
    for figure in folder.glob("*.svg"):
        if figure.name not in keep:
            figure.unlink(missing_ok=True)


def render(template: str, **values: Any) -> str:
    """Returns the page of a template of this folder. Raises ConfigError without matplotlib or jinja2."""
    jinja2 = import_report_libraries()
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), trim_blocks=False)
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"text": text, "code": code, "large": large, "fields": fields_text}
    page = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", visible(page)).strip() + "\n"


_SIMILAR = 1.1  # times the parameters, or the updates, of the smallest variant
_USUAL_SEEDS = 5  # of a study; below, the tests of spreads have little power
_RISE = 0.01  # nats, or share of the lowest held-out loss if that is above 1: a smaller rise may be chance


def curves_of(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Returns the curves of each variant's runs, of the variants that have evaluations."""
    curves = {name: [vars(run.curve) for run in results.of(name) if run.curve.loss] for name in results.study.variants}
    return {name: found for name, found in curves.items() if found}


class Lowest(NamedTuple):
    """Means over the runs of a variant: the lowest held-out loss, the raw tokens there, and the last loss."""

    loss: float
    raw_tokens: float
    last: float

    @property
    def is_earlier(self) -> bool:
        """Whether the loss was lower before the end."""
        return self.last - self.loss > _RISE * max(self.loss, 1)


def lowest_losses(results: Results) -> dict[str, Lowest]:
    """Returns the lowest held-out loss of each variant that has evaluations."""
    found = {}
    for variant, runs in curves_of(results).items():
        lowest = [min(zip(run["loss"], run["raw_tokens"], strict=True)) for run in runs]
        loss, raw_tokens = (statistics.fmean(values) for values in zip(*lowest, strict=True))
        found[variant] = Lowest(loss, raw_tokens, statistics.fmean(run["loss"][-1] for run in runs))
    return found


def headline(results: Results, measures: Sequence[Measured], sweeps: Sequence[SweepText]) -> str:
    """Returns the sentences that a reader of nothing else must read."""
    said, complete = [], len(results.outcomes) + len(results.scratch)
    if names := ", ".join(f"`{field}`" for field in results.confounders):
        said.append(
            f"**Confounded: the variants also differ in {names}, so no difference below is the effect of the question "
            "alone.**"
        )
    said += [f"**Warning: {text(warning)}.**" for warning in results.warnings]
    said += _joint_questions(results)
    if results.versions:
        runs = "; ".join(f"code {text(code)}: {text(names)}" for code, names in _versions(results).items())
        said.append(f"**Mixed code: the runs do not share one version of the source code ({runs}).**")
    devices = {run.environment.get("device"): run.variant for run in results.outcomes}
    if len(devices) > 1:
        runs = "; ".join(f"{text(str(device))}: `{variant}`" for device, variant in devices.items())
        said.append(f"**Mixed devices: the runs do not share one kind of device ({runs}, and perhaps others).**")
    compared = [measure for measure in measures if measure.pairs and any(measure.values.values())]
    useless = [measure for measure in compared if measure.nothing_follows]
    if useless:
        where = "Nothing follows" if len(useless) == len(compared) else "Nothing follows from some measures"
        names: dict[str, list[str]] = {}
        for measure in useless:
            names.setdefault(measure.nothing_follows, []).append(f"`{measure.name}`")
        reasons = [f"{text(why)} in {', '.join(of)}" for why, of in names.items()]
        said.append(f"**{where}: {'; '.join(reasons)}.**")
    earlier = [f"`{variant}`" for variant, lowest in lowest_losses(results).items() if lowest.is_earlier]
    if earlier and any(measure["kind"] == "heldout" for measure in results.study.measures.values()):
        said.append(
            f"**The held-out loss of {_listed(earlier)} was lower before the end, and measures are of the last step: "
            "at the lowest loss of each run the order may be another (Learning curves).**"
        )
    for names in _equal_variants(results, measures):
        said.append(f"**{_listed(names)} are equal in each seed: what they differ in had no effect on the runs.**")
    said.append(f"{complete} of {complete + len(results.problems)} runs are complete.")
    if results.study.seeds < MIN_SEEDS:
        said.append(f"With {plural(results.study.seeds, 'seed')} no means are tested: a test needs {MIN_SEEDS}.")
    elif results.study.seeds < _USUAL_SEEDS:
        said.append(
            f"With {results.study.seeds} seeds a study without any effect has a verdict more often than once in twenty "
            "times if the variants' spreads differ: docs/studies.md."
        )
    if others := sorted({*results.reported} - {results.study.seeds}):
        said.append(
            f"A report with verdicts was also written with {_listed([*map(str, others)])} seeds: where a verdict "
            "decides the number of seeds, a study without any effect has a verdict more often than p says."
        )
    kinds = [measure.kind(pair) for measure in compared for pair in measure.to_baseline.values()]
    found = sum(kind in ("better", "worse") for kind in kinds)
    tested = found + kinds.count("no significant difference")
    if tested and len(useless) < len(compared):
        families = count_families(results)
        word = "family" if families == 1 else "families"
        said.append(
            f"{found} of {tested} differences from the baseline that can be tested are beyond the noise between seeds, "
            f"corrected for {families} {word} of tests."
        )
    if ends := [variant for sweep in sweeps for variant in sweep.at_the_end()]:
        said.append(f"Chosen at the end of their sweep: {', '.join(ends)}.")
    return " ".join(said)


def _versions(results: Results) -> dict[str, str]:
    """Returns the code -> its runs; a variant whose runs all have one code is named once."""
    every = collections.Counter(name.partition("-")[0] for names in results.versions.values() for name in names)
    found = {}
    for version, names in results.versions.items():
        of_version = collections.Counter(name.partition("-")[0] for name in names)
        whole = {variant for variant, count in of_version.items() if count == every[variant] > 1}
        shown = [name for name in names if name.partition("-")[0] not in whole]
        found[version] = ", ".join([*shown, *(f"all of {variant}" for variant in of_version if variant in whole)])
    return found


def _equal_variants(results: Results, measures: Sequence[Measured]) -> list[list[str]]:
    """Returns groups of variants whose runs have equal held-out losses during training, and equal measures."""
    groups: dict[Any, list[str]] = {}
    for variant in curves_of(results):
        values = [measure.values.get(variant) for measure in measures]
        runs = [(run.seed, [*run.curve.loss]) for run in results.of(variant)]
        groups.setdefault(str((runs, values)), []).append(f"`{variant}`")
    return [names for names in groups.values() if len(names) > 1]


def _joint_questions(results: Results) -> list[str]:
    """Returns the sentence on what varies together, and on the sizes of the variants where these differ."""
    study, said = results.study, []
    varied = {f"`{field}`": values for field, values in results.questions.items()}
    varied = {"the config": [study.config_of(name) for name in study.variants]} | varied
    of_baseline = [*study.variants].index(study.baseline)
    differing = {
        name: [field for field, values in varied.items() if values[place] != values[of_baseline]]
        for place, name in enumerate(study.variants)
    }
    if joint := {name: fields for name, fields in differing.items() if len(fields) > 1}:
        names = [field for field in varied if any(field in fields for fields in joint.values())]
        who = "The variants differ"
        if len(joint) < len(study.variants) - 1:
            who = f"{_listed([f'`{name}`' for name in joint])} differ{'s' * (len(joint) == 1)} from `{study.baseline}`"
        said.append(f"{who} in {_listed(names)}, and a difference is of all these together.")
    complete, sizes = [runs for name in study.variants if (runs := results.of(name))], []
    for total, word, described in (("num_params", "parameters", large), ("steps", "updates", "{:,.0f}".format)):
        means = [statistics.fmean(getattr(run, total) for run in runs) for runs in complete]
        if means and max(means) > _SIMILAR * min(means):
            sizes.append(f"{described(min(means))} to {described(max(means))} {word}")
    return said + [f"{'They' if joint else 'The variants'} have {' and '.join(sizes)}."] * bool(sizes)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _field_rows(fields: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    return [[f"`{field}`", *map(text, map(str, values))] for field, values in fields.items()]


def _count(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{verdict}: {count}" for verdict, count in collections.Counter(verdicts).most_common())


def _order_row(order: Order) -> list[str]:
    result, names = order.published, (order.first, order.second)
    there = ", ".join(f"{result.values[name]:g}" for name in names if name in result.values) or "the order alone"
    here = order.ours.reason or order.here
    cells = [text(result.source), text(result.metric), *(f"`{name}`" for name in names), there, f"`{result.measure}`"]
    return [*cells, with_interval(order.ours), probability(order.ours.corrected), text(here), order.verdict]


def variant_row(name: str, results: Results) -> list[str]:
    """Returns how a variant trains, and the means over its runs."""
    study, runs = results.study, results.of(name)
    totals = [NONE] * 4
    if runs:
        names = ("num_params", "steps", "raw_tokens", "flops")
        params, steps, tokens, flops = (statistics.fmean(getattr(run, total) for run in runs) for total in names)
        totals = [large(params), f"{steps:,.0f}", large(tokens), large(flops)]
    return [f"`{name}`", f"`{study.config_of(name)}`", text(_difference(study.variants[name])), *totals]


def _difference(variant: Variant) -> str:
    fields = variant.overrides | {f"sweep of {field}": [*values] for field, values in variant.sweep.items()}
    if (start := variant.start) is not None:
        fields |= {"start": f"{start.config}, {start.share:.0%} of the budget"}
        fields |= {f"start: {field}": value for field, value in start.overrides.items()}
    return fields_text(fields) or NONE


def _environment(results: Results) -> list[list[str]]:
    """Returns what the runs were trained on; different values of a name are joined by "; "."""
    found = list(dict.fromkeys(item for run in results.outcomes for item in run.environment.items()))
    return [[text(name), text("; ".join(v for other, v in found if other == name))] for name in dict(found)]


def _seconds_row(variant: str, results: Results) -> list[str]:
    seconds = [run.seconds for run in results.of(variant)]
    return [f"`{variant}`", *(number(f(seconds), 0) for f in (statistics.fmean, min, max))]
