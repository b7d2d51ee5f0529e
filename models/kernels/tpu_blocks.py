"""Blocks of queries and keys for TPU kernels."""

TILE = 128  # a TPU's tile has this many lanes; blocks are multiples of it


def block_and_padded_length(length: int, largest_block: int) -> tuple[int, int]:
    """Returns the size of a block, at most `largest_block`, and `length` rounded up to whole blocks.

    The number of blocks is the smallest possible; for this number, the size is the smallest multiple of TILE.
    """
    num = -(-length // largest_block)
    size = -(-length // (num * TILE)) * TILE
    return size, num * size
