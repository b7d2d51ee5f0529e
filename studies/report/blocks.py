"""The parts of a report, which markdown.py and html.py write.

Text is plain, with `code` between backticks.
"""

import dataclasses
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Heading:
    """level 1: the title, 2: a section, 3: within a section."""

    text: str
    level: int = 2


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """kind: "plain", "conclusion" (the first paragraph), "warning" (what is missing) or "note" (below a table)."""

    text: str
    kind: str = "plain"


@dataclasses.dataclass(frozen=True)
class Points:
    """A list of sentences or short paragraphs, below a paragraph of the kind "conclusion"."""

    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells. The first column is names, in code; numbers: the places of columns that are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Figure:
    """name: of the file, without suffix."""

    name: str
    svg: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Code:
    """Text as it is, such as commands. title: if given, the text is folded under the title."""

    text: str
    title: str = ""


Block = Heading | Paragraph | Points | Table | Figure | Code

# All that HTML does not allow or that an editor does not show, but for tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Returns `text` with control characters and lone surrogates as Python escapes, such as \\x00."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)
