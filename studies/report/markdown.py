"""A report as Markdown, with figures as files."""

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

_LABELS = {"plain": "", "note": "", "conclusion": "", "warning": "**Not complete.** "}


def to_markdown(blocks: Sequence[Block], folder: str) -> str:
    """Returns the blocks as GitHub's Markdown. folder: of the figures, relative to the file."""
    return visible("\n\n".join(_block(block, folder) for block in blocks)) + "\n"


def _block(block: Block, folder: str) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_inline(text)}"
        case Paragraph(text, kind):
            return _LABELS[kind] + _inline(text)
        case Points(texts):
            return "\n".join(f"- {_inline(text)}" for text in texts)
        case Table(header, rows, numbers):
            rule = ["--:" if place in numbers else "---" for place in range(len(header))]
            cells = [map(_cell, header), rule, *(map(_cell, row) for row in rows)]
            return "\n".join(f"| {' | '.join(row)} |" for row in cells)
        case Figure(name, _, caption):
            alternative = re.sub(r"[\[\]`]", "", caption)
            return f"![{_escape_html(alternative)}]({folder}/{name}.svg)\n\n{_inline(caption)}"
        case Code(text, title):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            code = f"{fence}\n{text}\n{fence}"
            return f"<details><summary>{_escape(title)}</summary>\n\n{code}\n\n</details>" if title else code


def _cell(text: str) -> str:
    return _inline(" ".join(text.split())).replace("|", "\\|")


def _inline(text: str) -> str:
    """Returns text whose code stays code and in which nothing else is markup."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if place % 2 else _escape(part) for place, part in enumerate(parts))


def _escape(text: str) -> str:
    """Returns text with what GitHub's Markdown takes for emphasis, links, math, HTML and entities escaped."""
    return _escape_html(re.sub(r"[\\*_#`~$]|\](?=\()", r"\\\g<0>", text))


def _escape_html(text: str) -> str:
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", text))
