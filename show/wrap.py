"""Wraps runs of tokens into styled lines of a terminal, without breaking a special token."""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import chop_cells
from rich.text import Text

from show.text import ORDINARY, Run, visible

STYLES = {
    "text": "",
    "sentinel": "bold magenta",
    "mask": "bold black on yellow",
    "mode": "bold white on blue",
    "eos": "bold green",
    "special": "green",
    "random": "bold red",
    "kept": "bold blue",
}
_BRACKETS = "⟦", "⟧"  # around scored tokens, if the console cannot underline


class _Piece(NamedTuple):
    text: str
    style: str
    is_separate: bool  # whether a line may break on both sides of the piece


def styled_lines(runs: list[Run], width: int, *, plain: bool) -> list[Text]:
    """Returns lines of at most `width` columns, broken at newlines, at spaces and around special tokens.

    plain: no styles; scored tokens are in brackets instead.
    """
    lines = [Text()]
    for word in _words(runs, plain):
        if word.plain == "\n":
            lines.append(Text())
            continue
        if lines[-1].cell_len and lines[-1].cell_len + word.cell_len > width:
            lines.append(Text())
        chunks = chop_cells(word.plain, width)
        first, *rest = word.divide(list(itertools.accumulate(map(len, chunks[:-1])))) if len(chunks) > 1 else [word]
        lines[-1].append_text(first)
        lines += rest
    return lines


def _words(runs: list[Run], plain: bool) -> Iterator[Text]:
    """Yields the parts that lines do not break: words, spaces, special tokens, and "\n" for the end of a line."""
    word = Text()
    for piece in _pieces(runs, plain):
        if word.plain and (piece.is_separate or word.plain[-1].isspace() or piece.text[0].isspace()):
            yield word
            word = Text()
        word.append(piece.text, piece.style)
        if piece.is_separate:
            yield word
            word = Text()
    if word.plain:
        yield word


def _pieces(runs: list[Run], plain: bool) -> Iterator[_Piece]:
    for scored, group in itertools.groupby(runs, key=lambda run: run.scored):
        pieces = [piece for run in group for piece in _pieces_of_run(run, " underline" if scored else "")]
        if plain and scored:
            pieces[0] = pieces[0]._replace(text=_BRACKETS[0] + pieces[0].text)
            last = -2 if pieces[-1].text == "\n" else -1
            pieces[last] = pieces[last]._replace(text=pieces[last].text + _BRACKETS[1])
        yield from pieces


def _pieces_of_run(run: Run, extra_style: str) -> list[_Piece]:
    style = STYLES[run.kind] + extra_style
    if run.kind not in ORDINARY:
        return [_Piece(run.text, style, True)]
    return [
        _Piece(part, f"{style} dim" if is_mark else style, part == "\n")
        for text, is_mark in visible(run.text)
        # Three spaces replace a tab, whose width depends on the terminal.
        for part in re.findall(r"\n|\S+|[^\S\n]+", text.replace("\t", "   "))
    ]
