"""Writes the report of a study."""

import os
import pathlib
from collections.abc import Mapping, Sequence

from contract.errors import ConfigError
from files.atomic import write_text
from files.paths import reason_and_remedy
from studies.report import curves, dots
from studies.report.analysis import Analysis, analyse
from studies.report.blocks import Block, Figure, Heading, Paragraph, Points, Table
from studies.report.conclusion import conclude
from studies.report.literature import literature_blocks
from studies.report.markdown import to_markdown
from studies.report.measures import READING, measure_blocks
from studies.report.methods import method_blocks, sample_blocks, sweep_blocks, time_blocks
from studies.report.orders import Order, compare_with_papers
from studies.report.page import to_html
from studies.results import Results

_FIGURES = "figures"


def write_report(results: Results, out: str) -> list[str]:
    """Writes report.md, report.html and figures/*.svg to the folder `out` and returns their paths.

    Equal results give equal files; where only times differ, only the section on times does.

    Raises ConfigError if two runs were scored on different held-out text, if matplotlib is not installed and if the
    files cannot be written.
    """
    blocks = make_blocks(results)
    figures = [block for block in blocks if isinstance(block, Figure)]
    files = {
        "report.md": to_markdown(blocks, _FIGURES),
        "report.html": to_html(blocks, results.study.question),
        **{f"{_FIGURES}/{figure.name}.svg": figure.svg for figure in figures},
    }
    try:
        os.makedirs(os.path.join(out, _FIGURES), exist_ok=True)
        for old in pathlib.Path(out, _FIGURES).glob("*.svg"):  # of an earlier report with other figures
            old.unlink()
        for name, text in files.items():
            write_text(os.path.join(out, name), text)
    except OSError as error:
        raise ConfigError(f"--out={out}: the report cannot be written: {reason_and_remedy(error)}") from error
    return [os.path.join(out, name) for name in files]


def make_blocks(results: Results) -> list[Block]:
    """Returns the report. Raises ConfigError as write_report does."""
    analyses = analyse(results)
    kinds = {name: results.study.measures[name]["kind"] for name in analyses}
    times = {name: analysis for name, analysis in analyses.items() if kinds[name] == "throughput"}
    others = {name: analysis for name, analysis in analyses.items() if name not in times}
    every_order = compare_with_papers(results.study, analyses)
    orders = [order for order in every_order if order.published.measure in others]
    timed_orders = [order for order in every_order if order.published.measure in times]
    blocks = [*_beginning(results, others, orders)]
    if results.outcomes:
        blocks += _results(results, others, orders)
    blocks += sweep_blocks(results) + sample_blocks(results)
    blocks += [*method_blocks(results, others), *time_blocks(results, times)]
    return blocks + literature_blocks(timed_orders, analyses, Heading("Published times and these runs", 3))


def _beginning(results: Results, analyses: Mapping[str, Analysis], orders: Sequence[Order]) -> list[Block]:
    study = results.study
    conclusion = conclude(results, analyses, orders)
    blocks: list[Block] = [
        Heading(study.question, 1),
        Paragraph(f"Study `{results.name}`, baseline `{study.baseline}`.", "note"),
        Paragraph(conclusion.headline, "conclusion"),
    ]
    if conclusion.points:
        blocks.append(Points(conclusion.points))
    if results.problems:
        groups: dict[tuple[str, str, str], list[str]] = {}
        for problem in results.problems:
            groups.setdefault((problem.variant, problem.state, problem.text), []).append(str(problem.seed))
        rows = [[f"`{variant}`", ", ".join(seeds), *rest] for (variant, *rest), seeds in groups.items()]
        total = len(results.problems) + len(results.outcomes)
        blocks += [
            Heading("What is missing"),
            Paragraph(f"{len(results.problems)} of {total} runs gave no result.", "warning"),
            Table(["variant", "seeds", "state", "reason"], rows),
        ]
    return [*blocks, Heading("Notes"), Paragraph(study.notes)] if study.notes else blocks


def _results(results: Results, analyses: Mapping[str, Analysis], orders: Sequence[Order]) -> list[Block]:
    study = results.study
    blocks: list[Block] = [Heading("Results"), Paragraph(READING)]
    for name, analysis in analyses.items():
        blocks += [Heading(f"`{name}`", 3), *measure_blocks(analysis, results)]
        figure = f"dots_{name}"
        svg = dots.draw_dots(analysis, study.baseline, figure)
        if svg:
            blocks.append(Figure(figure, svg, dots.caption(analysis, study.baseline)))
    learning = []
    for x in curves.AXES:
        figure = f"curves_by_{x}"
        svg = curves.draw_curves(results, x, figure)
        if svg:
            learning.append(Figure(figure, svg, curves.caption(results, x)))
    if learning:
        blocks += [Heading("Learning curves"), *learning]
    return blocks + literature_blocks(orders, analyses, Heading("Published results and these runs"))
