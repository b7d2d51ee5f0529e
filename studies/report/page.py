"""A report as one HTML file without references to others."""

import html
import re
from collections.abc import Sequence

from studies.report.blocks import (
    Block,
    Code,
    Figure,
    Heading,
    Paragraph,
    Points,
    Table,
    visible,
)

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --quiet: #595959; --line: #d0d0d0; --tint: #f4f5f7;
  --accent: #0072b2; --warning: #b34700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --page: #17191c; --quiet: #a8a8a8; --line: #43474d;
  --tint: #22262b; --accent: #56b4e9; --warning: #f0a060; } }
body { color: var(--text); background: var(--page); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: 0.3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p, ul, figcaption { max-width: 46rem; }
p.conclusion, ul.conclusion { background: var(--tint); border-left: 4px solid var(--accent); margin: 0;
  box-sizing: border-box; }
p.conclusion { padding: 0.7rem 1rem 0.5rem; }
ul.conclusion { padding: 0.1rem 1rem 0.5rem 2.2rem; margin-bottom: 1rem; }
ul.conclusion li { margin-bottom: 0.35rem; }
p.warning { background: var(--tint); border-left: 4px solid var(--warning); padding: 0.7rem 1rem; }
p.note, figcaption { color: var(--quiet); font-size: 0.85rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.9rem 0.25rem 0;
  border-bottom: 1px solid var(--line); }
th { border-bottom: 2px solid var(--quiet); vertical-align: bottom; }
th code { overflow-wrap: anywhere; }
.number { text-align: right; }
.interval { white-space: nowrap; }
tr > :first-child { white-space: nowrap; }
code, pre { font: 0.88em ui-monospace, monospace; }
h1 code, h2 code, h3 code { font: inherit; }
pre { background: var(--tint); padding: 0.6rem 0.8rem; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figure svg { display: block; background: #fff; max-width: 100%; height: auto; }
summary { cursor: pointer; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } figure, tr, p { break-inside: avoid; }
  table { font-size: 8pt; } th, td { padding-right: 0.5rem; }
  h2, h3 { break-after: avoid; } div.wide { overflow: visible; } }
""".strip()


def to_html(blocks: Sequence[Block], title: str) -> str:
    """Returns the blocks as one HTML page, with its style and its figures inside."""
    body = visible("\n".join(_block(block) for block in blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(visible(title))}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text, kind):
            return f'<p class="{kind}">{_inline(text)}</p>'
        case Points(texts):
            items = "\n".join(f"<li>{_inline(text)}</li>" for text in texts)
            return f'<ul class="conclusion">\n{items}\n</ul>'
        case Table(header, rows, numbers):
            lines = [_row(header, "th", numbers), *(_row(row, "td", numbers) for row in rows)]
            return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"
        case Figure(_, svg, caption):
            label = html.escape(caption.replace("`", ""))
            svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
            return f"<figure>\n{svg}<figcaption>{_inline(caption)}</figcaption>\n</figure>"
        case Code(text, title):
            code = f"<pre>{html.escape(text)}</pre>"
            return f"<details><summary>{html.escape(title)}</summary>{code}</details>" if title else code


def _row(cells: Sequence[str], tag: str, numbers: Sequence[int]) -> str:
    aligned = [' class="number"' if place in numbers else "" for place in range(len(cells))]
    return (
        "<tr>" + "".join(f"<{tag}{to}>{_cell(cell)}</{tag}>" for to, cell in zip(aligned, cells, strict=True)) + "</tr>"
    )


def _cell(text: str) -> str:
    """Returns the text of a cell, in which a line does not end within an interval."""
    return re.sub(r"\[[−+0-9.,e]+, [−+0-9.,e]+\]", r'<span class="interval">\g<0></span>', _inline(text))


def _inline(text: str) -> str:
    """Returns text with backticks as code elements, and all else escaped."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
