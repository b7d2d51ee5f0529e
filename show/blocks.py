"""Attention masks as block characters: one character shows two cells, one above the other."""

import itertools

import numpy as np
from rich.console import Console
from rich.text import Text

from show.attention import FUTURE, HIDDEN, PADDING, VISIBLE, Picture, shrink

_STYLES = {VISIBLE: "blue", FUTURE: "yellow"}
_MAX_CELLS = 48


def picture_lines(pictures: list[Picture], width: int, *, plain: bool) -> list[Text]:
    """Returns lines of at most `width` columns that show the pictures next to each other, at the same scale.

    plain: whether there are no colors.
    """
    column = max(width // len(pictures) - 2, 8)
    longest = max(max(picture.cells.shape) for picture in pictures)
    factor = -(-longest // min(column, _MAX_CELLS))
    columns = [_lines(picture, factor, column, plain) for picture in pictures]
    found = []
    for parts in itertools.zip_longest(*columns, fillvalue=Text()):
        line = Text()
        for k, part in enumerate(parts):
            if part:
                line.append(" " * (k * (column + 2) - line.cell_len)).append_text(part)
        found.append(line)
    return found


def picture_legend(*, plain: bool) -> list[Text]:
    """Returns the meaning of each block character."""
    visible, future = ("", "") if plain else (_STYLES[VISIBLE], _STYLES[FUTURE])
    return [
        Text("rows: queries", "dim"),
        Text("columns: keys", "dim"),
        Text.assemble(("█", visible), (" visible", "dim")),
        Text.assemble(("▒" if plain else "█", future), (" visible, after the query", "dim")),
        Text("· hidden", "dim"),
    ]


def _lines(picture: Picture, factor: int, width: int, plain: bool) -> list[Text]:
    queries, keys = picture.cells.shape
    lines = [Text(picture.title, "bold"), Text(f"{queries} x {keys}, 1:{factor}", "dim")]
    lines = [line for title in lines for line in title.wrap(Console(width=width), width)]
    cells = shrink(picture.cells, factor)
    cells = cells[: 1 + np.flatnonzero((cells != PADDING).any(axis=1)).max(initial=0)]
    cells = np.pad(cells, ((0, len(cells) % 2), (0, 0)), constant_values=PADDING)
    for upper, lower in zip(cells[::2], cells[1::2], strict=True):
        line = Text()
        for (above, below), group in itertools.groupby(zip(upper.tolist(), lower.tolist(), strict=True)):
            block, style = _plain_block(above, below) if plain else _colored_block(above, below)
            line.append(block * len(list(group)), style)
        lines.append(line)
    return lines


def _plain_block(above: int, below: int) -> tuple[str, str]:
    upper, lower = above in _STYLES, below in _STYLES
    if upper and lower:
        return ("▒" if FUTURE in (above, below) else "█"), ""
    return ("▀" if upper else "▄", "") if upper or lower else _empty_block(above, below)


def _colored_block(above: int, below: int) -> tuple[str, str]:
    upper, lower = _STYLES.get(above), _STYLES.get(below)
    if upper and lower:  # a background has no gap to the next line, in every font
        return (" ", f"on {upper}") if upper == lower else ("▀", f"{upper} on {lower}")
    return ("▀" if upper else "▄", upper or lower) if upper or lower else _empty_block(above, below)


def _empty_block(above: int, below: int) -> tuple[str, str]:
    return ("·", "dim") if HIDDEN in (above, below) else (" ", "")
