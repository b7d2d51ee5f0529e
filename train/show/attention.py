"""Which positions see which: the models' own masks of one row, as a picture."""

import struct
import zlib
from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from models.attention import attention_mask
from train.show.examples import sides

HIDDEN, SEEN, AHEAD, PADDING = range(4)  # AHEAD: seen, and later in the row than the position that looks


class Picture(NamedTuple):
    """cells: uint8 [Q, S], what query q, downwards, makes of key s, to the right."""

    title: str
    cells: np.ndarray


def pictures(batch: Batch, row: int) -> list[Picture]:
    """The masks of one row: of each stack's self-attention, and of the cross-attention where there are two."""
    segments = {side: batch[f"{side}_segment_ids"][[row]] for side in sides(batch)}
    found = []
    for side, ids in segments.items():
        fields = {"bidirectional_mask_BxS": f"{side}_bidirectional_mask", "order_BxL": f"{side}_attention_order"}
        given = {name: batch[field][[row]] for name, field in fields.items() if field in batch}
        mask = attention_mask(ids, ids, causal=side == "decoder", **given)
        found.append(Picture(f"{side} self-attention", _cells(mask, ids[0], ids[0], is_self=True)))
    if len(segments) == 2:
        queries, keys = segments["decoder"], segments["encoder"]
        mask = attention_mask(queries, keys, causal=False)
        found.append(Picture("cross-attention", _cells(mask, queries[0], keys[0], is_self=False)))
    return found


def _cells(mask_1x1xQxS, query_segments: np.ndarray, key_segments: np.ndarray, *, is_self: bool) -> np.ndarray:
    cells = np.asarray(mask_1x1xQxS)[0, 0].astype(np.uint8)
    if is_self:
        cells[np.triu(cells, 1) > 0] = AHEAD
    cells[((query_segments == 0)[:, None] | (key_segments == 0)) & (cells == HIDDEN)] = PADDING
    return cells


def shrink(cells: np.ndarray, factor: int) -> np.ndarray:
    """Each block of factor x factor cells as one, uint8 [ceil(Q / factor), ceil(S / factor)].

    Seen, where a quarter of what is not padding is: the segments of a packed row show even where they are smaller than
    a block.
    """
    counts = []
    for kind in range(4):
        is_kind = (cells == kind).astype(np.int32)
        for axis in (0, 1):
            is_kind = np.add.reduceat(is_kind, np.arange(0, is_kind.shape[axis], factor), axis=axis)
        counts.append(is_kind)
    hidden, seen, ahead, _ = counts
    is_seen = (seen + ahead > 0) & (3 * (seen + ahead) >= hidden)
    of_seen, of_hidden = np.where(ahead > seen, AHEAD, SEEN), np.where(hidden > 0, HIDDEN, PADDING)
    return np.where(is_seen, of_seen, of_hidden).astype(np.uint8)


def png(cells: np.ndarray, palette: list[tuple[int, int, int, int]]) -> bytes:
    """A PNG file with a pixel for each cell; `palette` has the red, green, blue and alpha of the four kinds."""
    height, width = cells.shape
    colours = np.asarray(palette, np.uint8)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), cells], axis=1)  # each line begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"PLTE", colours[:, :3].tobytes()),
        (b"tRNS", colours[:, 3].tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
