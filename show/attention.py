"""Attention masks of one row as arrays of cells and as PNG files, from models.attention.attention_mask."""

import struct
import zlib
from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from models.attention import attention_mask
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
        fields = {"bidirectional_mask_BxS": f"{stack}_bidirectional_mask", "order_BxL": f"{stack}_attention_order"}
        present = {name: batch[field][[row]] for name, field in fields.items() if field in batch}
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


def png(cells: np.ndarray, palette: list[tuple[int, int, int, int]]) -> bytes:
    """Returns a PNG file with one pixel for each cell. palette: red, green, blue and alpha of each kind."""
    height, width = cells.shape
    colors = np.asarray(palette, np.uint8)
    # A scanline begins with the number of its filter; 0: no filter.
    scanlines = np.concatenate([np.zeros((height, 1), np.uint8), cells], axis=1)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits a pixel, indexed colors
        (b"PLTE", colors[:, :3].tobytes()),
        (b"tRNS", colors[:, 3].tobytes()),
        (b"IDAT", zlib.compress(scanlines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
