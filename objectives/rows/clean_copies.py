"""The clean copy of a text that is predicted in blocks: the context of each block, placed after the text in its row."""

import numpy as np

from contract.vocab import Vocab
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked


def block_numbers(length: int, block_length: int) -> np.ndarray:
    """int32 [length]: the number of each token's block, from 1."""
    return 1 + np.arange(length, dtype=np.int32) // block_length


def with_clean_copies(examples: Masked, vocab: Vocab) -> Masked:
    """Returns `examples` with a clean copy, of its targets, after each text that has blocks (Masked.blocks).

    Noisy block b, order -b, attends to itself and to the clean blocks before b. Clean block b, order b, attends to the
    clean blocks up to b (Arriola et al. 2025, arXiv 2503.09573). Only the noisy copy has targets: the others are pad.
    Both copies have the positions of the text.

    Where a token is predicted where the token before it is read (Masked.shifted), both copies are shifted here, after
    the decoder's start token each. The first position of a noisy block then reads the clean token before the block, as
    the first position of a causal language model's continuation does. The last token of a noisy block is not read.
    """
    blocks, (read, lengths), targets = examples.blocks, examples.inputs, examples.targets
    if blocks is None:
        return examples
    (count, width), has_copy, shifted = targets.shape, blocks.any(axis=1), examples.shifted
    totals = lengths * (1 + has_copy)
    # Where the joined value is in rows of the noisy values and then the clean ones. Nothing reads what is after totals.
    place, length = np.arange(totals.max(initial=0)), lengths[:, None]
    source = 2 * width * np.arange(count)[:, None] + place + (place >= length) * (width - length)

    def joined(noisy: np.ndarray, clean: np.ndarray | int) -> np.ndarray:
        """The first lengths[e] values of `noisy`, then those of `clean` if there is a copy."""
        halves = noisy, np.broadcast_to(np.asarray(clean, noisy.dtype), noisy.shape)
        return np.take(np.concatenate(halves, axis=1), source, mode="clip")

    clean = targets
    if shifted is not None and shifted.any():
        before = np.pad(targets, ((0, 0), (1, 0)), constant_values=vocab.decoder_start)[:, :-1]
        within_block = np.pad(blocks[:, 1:] == blocks[:, :-1], ((0, 0), (1, 0)))
        is_shifted = (shifted & has_copy)[:, None]
        read = np.where(is_shifted, np.where(within_block, np.roll(read, 1, axis=1), before), read)
        clean, shifted = np.where(is_shifted, before, targets), shifted & ~has_copy
    order = -blocks if examples.attention_order is None else np.where(blocks, -blocks, examples.attention_order)
    places = np.broadcast_to(np.arange(width, dtype=np.int32), targets.shape)
    return examples._replace(
        inputs=Sequences(joined(read, clean), totals),
        targets=joined(targets, vocab.pad),
        selected=joined(examples.selected, 0),
        attention_order=joined(order, blocks),
        weights=None if examples.weights is None else joined(examples.weights, 0),
        shifted=shifted,
        denominators=None if examples.denominators is None else joined(examples.denominators, 0),
        blocks=None,
        positions=joined(places, places),
    )
