"""Runs of tokens as lines of a terminal: styled, and wrapped without ever breaking a special token."""

import itertools
import re
from collections.abc import Iterator

from rich.cells import chop_cells
from rich.text import Text

from train.show.text import Run, visible

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
SCORED = "⟦", "⟧"  # around what is scored, where nothing can be underlined
_OF_TEXT = ("text", "random", "kept")


def styled_lines(texts: list[Run], width: int, *, plain: bool) -> list[Text]:
    """Lines of at most `width` columns. They break at newlines, at spaces and around special tokens.

    plain: there are no styles, so what is scored stands in brackets.
    """
    lines = [Text()]
    for word in _words(texts, plain):
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


def _words(texts: list[Run], plain: bool) -> Iterator[Text]:
    """What must not be broken: words, spaces, special tokens, and "\n" for the end of a line."""
    word = Text()
    for piece, style, stands_alone in _pieces(texts, plain):
        if word.plain and (stands_alone or word.plain[-1].isspace() or piece[0].isspace()):
            yield word
            word = Text()
        word.append(piece, style)
        if stands_alone:
            yield word
            word = Text()
    if word.plain:
        yield word


def _pieces(texts: list[Run], plain: bool) -> Iterator[tuple[str, str, bool]]:
    """Text, its style, and whether a line may break on both sides of it."""
    for scored, together in itertools.groupby(texts, key=lambda run: run.scored):
        pieces = [piece for run in together for piece in _pieces_of_run(run, " underline" if scored else "")]
        if plain and scored:
            text, style, stands_alone = pieces[0]
            pieces[0] = (SCORED[0] + text, style, stands_alone)
            last = -2 if pieces[-1][0] == "\n" else -1
            text, style, stands_alone = pieces[last]
            pieces[last] = (text + SCORED[1], style, stands_alone)
        yield from pieces


def _pieces_of_run(run: Run, more_style: str) -> list[tuple[str, str, bool]]:
    style = STYLES[run.kind] + more_style
    if run.kind not in _OF_TEXT:
        return [(run.text, style, True)]
    return [
        (part, f"{style} dim" if is_mark else style, part == "\n")
        for piece, is_mark in visible(run.text)
        # A tab is as wide on every terminal as the lines were made for.
        for part in re.findall(r"\n|\S+|[^\S\n]+", piece.replace("\t", "   "))
    ]
