"""The page of train.show as one self-contained HTML file, for light and dark screens."""

import base64
import itertools
from collections.abc import Iterable
from html import escape

import numpy as np

from command.plural import plural
from show.attention import Picture, png
from show.page import Page
from show.rows import PADDING, Example, Row, StackRow
from show.statistics import STATISTICS, Statistic, formatted, heading
from show.style import CSS
from show.text import KINDS, ORDINARY, Run, visible

# Red, green, blue and alpha of HIDDEN, VISIBLE, FUTURE, PADDING; on a light and on a dark background.
_PALETTE = [(128, 128, 128, 40), (59, 118, 214, 255), (226, 150, 40, 255), (0, 0, 0, 0)]


def html_page(page: Page) -> str:
    """Returns the HTML file as text."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(page.title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>",
            f"<header><h1>{escape(page.title)}</h1>",
            *(f'<p class="warning">{escape(warning)}</p>' for warning in page.warnings),
            "<dl>",
            *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in page.facts),
            "</dl></header>",
            _denoisers(page),
            *([_statistics(page)] if page.statistics else []),
            f"<h2>Examples</h2>\n{examples_html(page)}",
            "</body>\n</html>\n",
        ]
    )


def examples_html(page: Page) -> str:
    """Returns the examples with their attention masks and a legend, as elements for a page with the style sheet."""
    return "\n".join([_legend(page), *(_row(row) for row in page.rows)])


def _denoisers(page: Page) -> str:
    rows = [
        [
            f"<th scope=row>{escape(denoiser.name)}</th>",
            f"<td>{_span('mode', denoiser.mode) if denoiser.mode else '-'}</td>",
            f"<td class=n>{denoiser.share}</td><td class=w>{escape(denoiser.window)}</td>",
            f"<td><b>{escape(denoiser.objective)}</b> {escape(denoiser.fields)}</td>",
        ]
        for denoiser in page.denoisers
    ]
    head = "<tr><th>denoiser</th><th>mode</th><th class=n>share</th><th>window</th><th>objective</th></tr>"
    return "<h2>Denoisers</h2>\n" + _table(head, ("".join(cells) for cells in rows))


def _statistics(page: Page) -> str:
    head = "".join(f'<th title="{escape(STATISTICS[name])}">{escape(heading(name))}</th>' for name in page.columns)
    rows = (
        f"<th scope=row>{escape(denoiser)}</th>" + "".join(_statistic(name, table[name]) for name in page.columns)
        for denoiser, table in page.statistics.items()
    )
    return "\n".join(
        [
            f"<h2>Statistics</h2>\n<p>Of {escape(page.measured_on)}. Below a measured value: the expected value. "
            '<span class="off">≠ red</span>: they differ by more than a tenth, and by more than rounding explains.</p>',
            _table(f"<tr><th>denoiser</th>{head}</tr>", rows),
            *(f"<p>{escape(note)}</p>" for note in page.notes),
        ]
    )


def _statistic(name: str, statistic: Statistic) -> str:
    expected = "" if statistic.expected is None else f"<small>{formatted(name, statistic.expected)}</small>"
    style, mark = (' class="n off"', "≠ ") if statistic.differs else (" class=n", "")
    return f"<td{style}>{mark}{formatted(name, statistic.measured)}{expected}</td>"


def _table(head: str, rows: Iterable[str]) -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _legend(page: Page) -> str:
    items = ["<u>scored</u>"]
    for kind, sample in page.samples.items():
        if kind not in ORDINARY:
            items.append(f"{_span(kind, sample)} {KINDS[kind]}")
        elif kind != "text":  # ordinary text of another color
            items.append(_span(kind, KINDS[kind]))
    items.append("<i>↵</i> newline")
    bars = '<b class="bar"><b class="s2"></b></b> scored <b class="bar"><b class="s1"></b></b> not scored'
    return f'<p class="legend">{" · ".join(items)} · positions: {bars} <b class="bar"></b> padding</p>'


def _row(row: Row) -> str:
    omitted = f'<p class="facts">{plural(row.num_omitted, "more example")} in this row</p>'
    return "\n".join(
        [
            f"<article><h3>{row.title}</h3>",
            *map(_stack_row, row.stack_rows),
            *(_example(example, row.num_segments) for example in row.examples),
            *([omitted] if row.num_omitted else []),
            "<details open><summary>attention</summary>",
            f'<div class="pictures">{"".join(map(_picture, row.pictures))}</div>',
            '<p class="facts">Rows are queries, columns are keys. Blue: visible; orange: visible, after the query; '
            "gray: hidden; empty: padding.</p></details></article>",
        ]
    )


def _stack_row(stack_row: StackRow) -> str:
    bars, states, segment_ids = [], stack_row.states, stack_row.segment_ids
    changes = np.flatnonzero(np.diff(states) | np.diff(segment_ids)) + 1
    for part in np.split(np.arange(len(states)), changes):
        first, width = part[0], 100 * len(part) / len(states)
        begins_segment = first and states[first] != PADDING and segment_ids[first] != segment_ids[first - 1]
        name = f"s{states[first]}" + (" begins" if begins_segment else "")
        bars.append(f'<b class="{name}" style="width:{width:.3f}%"></b>')
    name, facts = stack_row.stack, stack_row.facts
    return f'<div class="strip"><span>{name}</span><div>{"".join(bars)}</div><span>{facts}</span></div>'


def _example(example: Example, num_segments: int) -> str:
    segment = f" <small>segment {example.segment} of {num_segments}</small>" if num_segments > 1 else ""
    mode = " " + _span("mode", example.mode) if example.mode else ""
    return "\n".join(
        [
            f"<section><h4>example {example.number}: {escape(example.denoiser)}{mode}{segment}</h4>",
            f'<p class="facts">{escape(example.facts)}</p>',
            *(f"<h5>{section.title}</h5><pre>{_runs(section.runs)}</pre>" for section in example.sections),
            "</section>",
        ]
    )


def _runs(runs: list[Run]) -> str:
    parts = [] if runs else ["<small>(none)</small>"]
    for scored, group in itertools.groupby(runs, key=lambda run: run.scored):
        text = "".join(_marked(run.text) if run.kind == "text" else _span(run.kind, run.text) for run in group)
        parts.append(f"<u>{text}</u>" if scored else text)
    return "".join(parts)


def _span(kind: str, text: str) -> str:
    # A line may break before a special token, but not inside one.
    return ("" if kind in ORDINARY else "<wbr>") + f'<span class="{kind}">{_marked(text)}</span>'


def _marked(text: str) -> str:
    return "".join(f"<i>{escape(piece)}</i>" if is_mark else escape(piece) for piece, is_mark in visible(text))


def _picture(picture: Picture) -> str:
    data = base64.b64encode(png(picture.cells, _PALETTE)).decode("ascii")
    queries, keys = picture.cells.shape
    return (
        f'<figure><img alt="{picture.title}" src="data:image/png;base64,{data}" '
        f'style="aspect-ratio:{keys}/{queries}"><figcaption>{picture.title}, {queries} × {keys}</figcaption></figure>'
    )
