"""The clean copy of a text that is predicted in blocks: the context of each block, placed after the text in its row."""

import numpy as np

from contract.vocab import Vocab


def block_numbers(length: int, block_length: int) -> np.ndarray:
    """int32 [length]: the number of each token's block, from 1."""
    return 1 + np.arange(length, dtype=np.int32) // block_length


def copy_lengths(blocks: np.ndarray | None, lengths: np.ndarray) -> np.ndarray | None:
    """int [E]: the lengths of the clean copies of texts of `lengths`, 0 without blocks (Masked.blocks).

    None: no example has blocks.
    """
    return None if blocks is None else lengths * (blocks[:, 0] > 0)


def read_in_blocks(
    read: np.ndarray,
    targets: np.ndarray,
    blocks: np.ndarray,
    order: np.ndarray | None,
    shifted: np.ndarray | None,
    vocab: Vocab,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns what is read, int32 [E, W], and in clean copies, int32 [E, W], the attention order, and what is shifted.

    Noisy block b, order -b, attends to itself and to the clean blocks before b. Clean block b, order b, attends to the
    clean blocks up to b (Arriola et al. 2025, arXiv 2503.09573). Only the noisy copy has targets: the others are pad.
    Both copies have the positions of the text. An example without blocks keeps what it reads, its order and its shift.

    Where a token is predicted where the token before it is read, both copies are shifted here, after the decoder's
    start token each, and not again. The first position of a noisy block then reads the clean token before the block, as
    the first position of a causal language model's continuation does. The last token of a noisy block is not read.

    Args:
      read, targets: int32 [E, W], the noisy texts and the true tokens.
      blocks, order, shifted: those of Masked.
      vocab: the special ids.
    """
    order, has_copy = -blocks if order is None else np.where(blocks, -blocks, order), blocks[:, 0] > 0
    if shifted is None or not shifted.any():
        return read, targets, order, shifted
    before = np.pad(targets, ((0, 0), (1, 0)), constant_values=vocab.decoder_start)[:, :-1]
    within_block = np.pad(blocks[:, 1:] == blocks[:, :-1], ((0, 0), (1, 0)))
    is_shifted = (shifted & has_copy)[:, None]
    read = np.where(is_shifted, np.where(within_block, np.roll(read, 1, axis=1), before), read)
    return read, np.where(is_shifted, before, targets), order, shifted & ~has_copy
