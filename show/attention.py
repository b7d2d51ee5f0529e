"""Attention masks of one row, from models.attention.attention_mask: as arrays of cells and as block characters."""

import itertools
from typing import NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from contract.batch import Batch
from models.attention import attention_mask
from models.transformer import open_prefix
from show.examples import stacks

HIDDEN, VISIBLE, FUTURE, PADDING = range(4)  # kinds of cells; FUTURE: visible, and after the query in the row


class Picture(NamedTuple):
    """One attention mask. cells: uint8 [Q, S], the kind of each pair of a query and a key."""

    title: str
    cells: np.ndarray


def pictures(batch: Batch, row: int) -> list[Picture]:
    """Returns the masks of one row: self-attention of each stack and, with two stacks, cross-attention."""
    segment_ids = {stack: batch[f"{stack}_segment_ids"][[row]] for stack in stacks(batch)}
    found = []
    for stack, ids in segment_ids.items():
        fields = {"bidirectional_mask": f"{stack}_bidirectional_mask", "order_BxL": f"{stack}_attention_order"}
        present = {name: batch[field][[row]] for name, field in fields.items() if field in batch}
        if stack == "decoder" and "bidirectional_mask" in present:
            present["bidirectional_mask"] = open_prefix({name: values[[row]] for name, values in batch.items()})
        mask = attention_mask(ids, ids, causal=stack == "decoder", **present)
        found.append(Picture(f"{stack} self-attention", _cells(mask, ids[0], ids[0], is_self=True)))
    if len(segment_ids) == 2:
        queries, keys = segment_ids["decoder"], segment_ids["encoder"]
        mask = attention_mask(queries, keys, causal=False)
        found.append(Picture("cross-attention", _cells(mask, queries[0], keys[0], is_self=False)))
    return found


def _cells(mask_1x1xQxS, query_segment_ids: np.ndarray, key_segment_ids: np.ndarray, *, is_self: bool) -> np.ndarray:
    cells = np.asarray(mask_1x1xQxS)[0, 0].astype(np.uint8)  # False is HIDDEN, True is VISIBLE
    if is_self:
        cells[np.triu(cells, 1) > 0] = FUTURE
    cells[((query_segment_ids == 0)[:, None] | (key_segment_ids == 0)) & (cells == HIDDEN)] = PADDING
    return cells


def shrink(cells: np.ndarray, factor: int) -> np.ndarray:
    """Returns one cell for each block of factor x factor cells, uint8 [ceil(Q / factor), ceil(S / factor)].

    A block is visible if at least a quarter of its cells that are not padding are visible, so that segments smaller
    than a block are shown too.
    """
    counts = []
    for kind in range(4):
        is_kind = (cells == kind).astype(np.int32)
        for axis in (0, 1):
            is_kind = np.add.reduceat(is_kind, np.arange(0, is_kind.shape[axis], factor), axis=axis)
        counts.append(is_kind)
    hidden, visible, future, _ = counts
    is_visible = (visible + future > 0) & (3 * (visible + future) >= hidden)
    if_visible, if_hidden = np.where(future > visible, FUTURE, VISIBLE), np.where(hidden > 0, HIDDEN, PADDING)
    return np.where(is_visible, if_visible, if_hidden).astype(np.uint8)


_STYLES = {VISIBLE: "blue", FUTURE: "yellow"}
_MAX_CELLS = 48


def picture_table(pictures: list[Picture], width: int, *, plain: bool) -> Table:
    """Returns the pictures next to each other, at the same scale, in at most `width` columns.

    plain: whether there are no colors.
    """
    column = max(width // len(pictures) - 2, 8)
    longest = max(max(picture.cells.shape) for picture in pictures)
    factor = -(-longest // min(column, _MAX_CELLS))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in pictures:
        table.add_column(width=column)
    table.add_row(*(Text("\n").join(_lines(picture, factor, plain)) for picture in pictures))
    return table


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


def _lines(picture: Picture, factor: int, plain: bool) -> list[Text]:
    queries, keys = picture.cells.shape
    lines = [Text(picture.title, "bold"), Text(f"{queries} x {keys}, 1:{factor}", "dim")]
    cells = shrink(picture.cells, factor)
    cells = cells[: 1 + np.flatnonzero((cells != PADDING).any(axis=1)).max(initial=0)]
    cells = np.pad(cells, ((0, len(cells) % 2), (0, 0)), constant_values=PADDING)
    for upper, lower in zip(cells[::2], cells[1::2], strict=True):
        line = Text()
        for (above, below), group in itertools.groupby(zip(upper.tolist(), lower.tolist(), strict=True)):
            block, style = _block(above, below, plain)
            line.append(block * len(list(group)), style)
        lines.append(line)
    return lines


def _block(above: int, below: int, plain: bool) -> tuple[str, str]:
    """Returns the character and the style of two cells."""
    upper, lower = _STYLES.get(above), _STYLES.get(below)
    if not (upper or lower):
        return ("·", "dim") if HIDDEN in (above, below) else (" ", "")
    if not (upper and lower):
        return "▀" if upper else "▄", "" if plain else upper or lower or ""
    if plain:
        return "▒" if FUTURE in (above, below) else "█", ""
    # A background has no gap to the next line, in every font.
    return (" ", f"on {upper}") if upper == lower else ("▀", f"{upper} on {lower}")
