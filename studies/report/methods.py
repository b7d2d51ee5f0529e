"""How a study was done: its statistics, runs, commands and versions; and, separately, its times."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from command.program import plural
from studies.report.analysis import Analysis
from studies.report.blocks import Block, Code, Heading, Paragraph, Table
from studies.report.measures import measure_blocks, values_of_runs
from studies.report.numbers import large, number
from studies.results import Outcome, Results
from studies.study import Variant

_UNITS = {"raw_tokens": "raw tokens of text", "flops": "model FLOPs"}


def method_blocks(results: Results, analyses: Mapping[str, Analysis]) -> list[Block]:
    """Returns the section on how the study was done, without anything that depends on times."""
    study = results.study
    overrides = f" Overrides of every run: {_fields(study.overrides)}." if study.overrides else ""
    blocks: list[Block] = [
        Heading("How it was done"),
        Paragraph(
            f"Each of {plural(len(study.variants), 'variant')} trains with {plural(study.seeds, 'seed')} on a budget "
            f"of {large(study.budget.amount)} {_UNITS[study.budget.unit]} a run.{overrides}"
        ),
        Paragraph(
            "Statistics: means with t intervals at 95%; paired two-sided t tests over the seeds that two variants have "
            "in common; Holm's step-down correction. Each measure has two families of comparisons, and each pair of "
            "variants is in one of them: all pairs with the baseline, which is chosen before the runs, and all other "
            "pairs. In each family the chance of any wrong verdict is at most 5%. Measures are not corrected for each "
            "other. A comparison without a test counts in the correction, unless the measure leaves a variant out. "
            "The best variant is one that is no worse than any other in the mean over the seeds that both have, of "
            "the variants with two seeds or more. The smallest detectable difference is that of a paired t test with "
            "a power of 80%."
        ),
        Heading("Variants", 3),
        Table(
            ["variant", "config", "overrides", "parameters", "steps", "raw tokens", "FLOPs"],
            [_variant_row(name, results) for name in study.variants],
            numbers=(3, 4, 5, 6),
        ),
        Heading("Values of every run", 3),
        values_of_runs(results, analyses),
        Heading("Commands", 3),
        Code(results.command),
    ]
    commands = "\n\n".join(
        "\n".join([f"# {outcome.variant}, seed {outcome.seed}", *outcome.commands])
        for outcome in results.outcomes
        if outcome.commands
    )
    if commands:
        blocks += [
            Paragraph("The command above makes these runs. Each command repeats one of them:"),
            Code(commands, "Commands of every run"),
        ]
    environment = [[name, text] for name, text in results.environment.items()]
    return [*blocks, Heading("Versions and hardware", 3), Table(["what", "value"], environment)]


def sweep_blocks(results: Results) -> list[Block]:
    """Returns the table of the values that sweeps tried; [] without sweeps."""
    if not results.sweeps:
        return []
    measure = results.study.compared[0]
    chosen = {(outcome.variant, field): value for outcome in results.outcomes for field, value in outcome.swept.items()}
    rows = []
    for point in results.sweeps:
        is_chosen = (point.variant, point.field) in chosen and chosen[point.variant, point.field] == point.value
        score = number(point.score, 4) if point.score is not None else f"none: {point.reason}"
        rows.append([f"`{point.variant}`", f"`{point.field}`", f"{point.value}", score, "chosen" if is_chosen else ""])
    return [
        Heading("Sweeps"),
        Paragraph(
            f"Each value was tried once, with a seed that the study does not use otherwise. The value with the best "
            f"`{measure}` is the variant's."
        ),
        Table(["variant", "field", "value", measure, ""], rows, numbers=(2, 3)),
    ]


def sample_blocks(results: Results) -> list[Block]:
    """Returns what the runs generated, of the first seed of each variant that has samples; [] without samples."""
    blocks: list[Block] = []
    shown: set[tuple[str, str]] = set()
    for outcome in results.outcomes:
        for measure, texts in outcome.samples.items():
            if (measure, outcome.variant) not in shown:
                shown.add((measure, outcome.variant))
                written = "\n\n".join(f"prompt: {prompt}\n{text}" for prompt, text in texts.items())
                blocks.append(Code(written, f"{measure}: {outcome.variant}, seed {outcome.seed}"))
    if not blocks:
        return []
    return [Heading("Samples"), Paragraph("Greedy, of the first complete seed of each variant; not compared."), *blocks]


def time_blocks(results: Results, analyses: Mapping[str, Analysis]) -> list[Block]:
    """Returns the section on times and throughput, the only one that differs if the study is repeated."""
    rows = []
    for variant in results.study.variants:
        seconds = [outcome.seconds for outcome in _of(variant, results)]
        if seconds:
            low, high = (number(value, 0) for value in (min(seconds), max(seconds)))
            rows.append([f"`{variant}`", number(statistics.fmean(seconds), 0), f"{low} to {high}"])
    blocks: list[Block] = [
        Heading("Times"),
        Paragraph("Times depend on the machine and on its other work; nothing above depends on them."),
        Table(["variant", "seconds of training, mean", "range"], rows, numbers=(1, 2)),
    ]
    for measure, analysis in analyses.items():
        blocks += [Heading(f"`{measure}`", 3), *measure_blocks(analysis, results)]
    return blocks


def _variant_row(name: str, results: Results) -> list[str]:
    variant, outcomes = results.study.variants[name], _of(name, results)
    return [
        f"`{name}`",
        f"`{results.study.config_of(name)}`",
        _difference(variant),
        *(_total(outcomes, total) for total in ("num_params", "steps", "raw_tokens", "flops")),
    ]


def _difference(variant: Variant) -> str:
    parts = [_fields(variant.overrides)] if variant.overrides else []
    if variant.sweep:
        parts.append(f"sweep of {', '.join(f'`{field}`' for field in variant.sweep)}")
    if variant.start is not None:
        start = variant.start
        fields = f" with {_fields(start.overrides)}" if start.overrides else ""
        parts.append(f"the first {start.share:.0%} of the budget: `{start.config}`{fields}")
    return "; ".join(parts) or "–"


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{field}={value}`" for field, value in fields.items())


def _total(outcomes: Sequence[Outcome], name: str) -> str:
    """Returns a total of a variant's runs; the smallest and the largest if the runs differ."""
    totals = sorted({getattr(outcome, name) for outcome in outcomes})
    texts = dict.fromkeys(number(total, 0) if name == "steps" else large(total) for total in totals)
    return " to ".join([*texts][:: max(1, len(texts) - 1)]) if texts else "–"


def _of(variant: str, results: Results) -> list[Outcome]:
    return [outcome for outcome in results.outcomes if outcome.variant == variant]
