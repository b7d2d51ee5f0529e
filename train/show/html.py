"""The page of train.show as one HTML file: nothing is loaded from anywhere else, and light and dark both read well."""

import base64
import itertools
from collections.abc import Iterable
from html import escape

import numpy as np

from train.show.attention import Picture, png
from train.show.counts import STATISTICS, Count, number
from train.show.page import Page
from train.show.rows import PADDING, Example, Row, Strip
from train.show.style import CSS
from train.show.text import KINDS, Run, visible

# hidden, seen, seen and later, padding: red, green, blue, alpha; on light and on dark ground
_PALETTE = [(128, 128, 128, 40), (59, 118, 214, 255), (226, 150, 40, 255), (0, 0, 0, 0)]


def html_page(page: Page) -> str:
    """The whole file, as text."""
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
            _counts(page),
            f"<h2>Examples</h2>\n{_legend(page)}",
            *(_row(row) for row in page.rows),
            "</body>\n</html>\n",
        ]
    )


def _denoisers(page: Page) -> str:
    rows = [
        [
            f"<th scope=row>{escape(one.name)}</th>",
            f"<td>{_span('mode', one.mode) if one.mode else '-'}</td>",
            f"<td class=n>{one.share}</td><td class=w>{escape(one.window)}</td>",
            f"<td><b>{escape(one.objective)}</b> {escape(one.fields)}</td>",
        ]
        for one in page.denoisers
    ]
    head = "<tr><th>denoiser</th><th>mode</th><th class=n>share</th><th>window</th><th>what it does</th></tr>"
    return "<h2>What was asked</h2>\n" + _table(head, ("".join(cells) for cells in rows))


def _counts(page: Page) -> str:
    head = "".join(
        f'<th title="{escape(STATISTICS[name][2])}">{escape(STATISTICS[name][0])}</th>' for name in page.statistics
    )
    rows = (
        f"<th scope=row>{escape(denoiser)}</th>" + "".join(_count(name, counts[name]) for name in page.statistics)
        for denoiser, counts in page.counts.items()
    )
    return "\n".join(
        [
            f"<h2>Counts</h2>\n<p>Over {escape(page.counted)}. Below a number: what was asked; "
            f'<span class="off">≠ red</span>: more than a tenth, and more than rounding explains, away from it.</p>',
            _table(f"<tr><th>denoiser</th>{head}</tr>", rows),
            *(f"<p>{escape(note)}</p>" for note in page.notes),
        ]
    )


def _count(name: str, count: Count) -> str:
    expected = f"<small>{number(name, count.expected)}</small>" if count.expected is not None else ""
    off = ' class="n off"' if count.is_off else " class=n"
    return f"<td{off}>{'≠ ' if count.is_off else ''}{number(name, count.measured)}{expected}</td>"


def _table(head: str, rows: Iterable[str]) -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _legend(page: Page) -> str:
    texts = [run for row in page.rows for one in row.examples for section in one.sections for run in section.runs]
    parts = ["<u>scored</u>"]
    for kind, meaning in KINDS.items():
        samples = [run.text for run in texts if run.kind == kind]
        if kind != "text" and samples:
            own = kind not in ("random", "kept")
            parts.append(_span(kind, samples[0] if own else meaning) + (f" {meaning}" if own else ""))
    parts.append("<i>↵</i> newline")
    bars = '<b class="bar"><b class="s1"></b></b> read <b class="bar"><b class="s2"></b></b> scored'
    return f'<p class="legend">{" · ".join(parts)} · in the bars: {bars} <b class="bar"></b> padding</p>'


def _row(row: Row) -> str:
    examples = f"{row.num_segments} examples" if row.num_segments > 1 else "1 example"
    missing = row.num_segments - len(row.examples)
    return "\n".join(
        [
            f"<article><h3>batch {row.batch}, row {row.row}: {examples}</h3>",
            *map(_strip, row.strips),
            *(_example(one, row.num_segments) for one in row.examples),
            *([f'<p class="facts">{missing} more in this row</p>'] if missing else []),
            "<details open><summary>attention</summary>",
            f'<div class="pictures">{"".join(map(_picture, row.pictures))}</div>',
            '<p class="facts">Down: the position that looks; across: what it sees. Blue: seen; orange: seen, and later '
            "in the row than itself; grey: hidden; nothing: padding.</p></details></article>",
        ]
    )


def _strip(strip: Strip) -> str:
    bars = []
    changes = np.flatnonzero(np.diff(strip.states) | np.diff(strip.segments)) + 1
    for part in np.split(np.arange(len(strip.states)), changes):
        state, width = int(strip.states[part[0]]), 100 * len(part) / len(strip.states)
        begins = part[0] and state != PADDING and strip.segments[part[0]] != strip.segments[part[0] - 1]
        name = f"s{state}" + (" begins" if begins else "")
        bars.append(f'<b class="{name}" style="width:{width:.3f}%"></b>')
    return f'<div class="strip"><span>{strip.title}</span><div>{"".join(bars)}</div><span>{strip.facts}</span></div>'


def _example(one: Example, num_segments: int) -> str:
    segment = f" <small>segment {one.segment} of {num_segments}</small>" if num_segments > 1 else ""
    mode = " " + _span("mode", one.mode) if one.mode else ""
    return "\n".join(
        [
            f"<section><h4>example {one.number}: {escape(one.denoiser)}{mode}{segment}</h4>",
            f'<p class="facts">{escape(one.facts)}</p>',
            *(f"<h5>{title}</h5><pre>{_text(texts)}</pre>" for title, texts in one.sections),
            "</section>",
        ]
    )


def _text(texts: list[Run]) -> str:
    parts = [] if texts else ["<small>(none)</small>"]
    for scored, together in itertools.groupby(texts, key=lambda run: run.scored):
        inside = "".join(_marked(run.text) if run.kind == "text" else _span(run.kind, run.text) for run in together)
        parts.append(f"<u>{inside}</u>" if scored else inside)
    return "".join(parts)


def _span(kind: str, text: str) -> str:
    # A line may break before a special token, never inside.
    return ("" if kind in ("random", "kept") else "<wbr>") + f'<span class="{kind}">{_marked(text)}</span>'


def _marked(text: str) -> str:
    return "".join(f"<i>{escape(piece)}</i>" if is_mark else escape(piece) for piece, is_mark in visible(text))


def _picture(picture: Picture) -> str:
    data = base64.b64encode(png(picture.cells, _PALETTE)).decode("ascii")
    queries, keys = picture.cells.shape
    return (
        f'<figure><img alt="{picture.title}" src="data:image/png;base64,{data}" '
        f'style="aspect-ratio:{keys}/{queries}"><figcaption>{picture.title}, {queries} × {keys}</figcaption></figure>'
    )
