"""The two draws of masked language modeling: which tokens are selected, and what the inputs show at their place."""

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, random_tokens


def maskable(text: Sequences, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the tokens that may be selected: ordinary tokens, up to the end of each sequence."""
    inside = valid_positions(text.lengths, text.tokens.shape[1])
    return inside & (text.tokens >= vocab.content_start) & (text.tokens < vocab.content_end)


def mask_selected(
    keys: np.ndarray, tokens: np.ndarray, selected: np.ndarray, vocab: Vocab, mask_rate: float, random_rate: float
) -> np.ndarray:
    """int32 [E, W]: `tokens` with each selected token independently masked, replaced by a random token, or kept.

    Args:
      keys: uint64 [E].
      tokens: int32 [E, W].
      selected: bool [E, W].
      vocab: supplies [MASK] and the ordinary tokens.
      mask_rate: probability of [MASK].
      random_rate: probability of a random ordinary token.
    """
    rows, columns = np.divmod(np.flatnonzero(selected), tokens.shape[1])
    draws = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 1)[rows], columns))
    randoms = random_tokens(rng.bits_at(rng.fold_in(keys, 2)[rows], columns), vocab)
    not_masked = np.where(draws < mask_rate + random_rate, randoms, tokens[rows, columns])
    inputs = tokens.copy()
    inputs[rows, columns] = np.where(draws < mask_rate, vocab.mask, not_masked)
    return inputs


def replaced(keys: np.ndarray, selected: np.ndarray, mask_rate: float, random_rate: float) -> np.ndarray:
    """bool [E, W]: the selected tokens that `mask_selected` masks or replaces, for the same keys."""
    return selected & (rng.uniform(rng.fold_in(keys, 1), selected.shape[1]) < mask_rate + random_rate)
