"""Masked language modelling's two draws: which tokens are selected, and what the inputs show in their place."""

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra import sequences
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences


def ordinary(text: Sequences, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the tokens that may be selected, all within their sequence that are no special token."""
    inside = valid_positions(text.lengths, text.tokens.shape[1])
    return inside & (text.tokens >= vocab.content_start) & (text.tokens < vocab.content_end)


def show(
    keys: np.ndarray, tokens: np.ndarray, selected: np.ndarray, vocab: Vocab, mask_rate: float, random_rate: float
) -> np.ndarray:
    """int32 [E, W]: `tokens`, each of the selected one by itself become [MASK], a random ordinary token, or kept.

    tokens: int32 [E, W]; selected: bool [E, W]; the rates are probabilities, the rest is kept.
    """
    rows, columns = np.divmod(np.flatnonzero(selected), tokens.shape[1])
    shown = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 1)[rows], columns))
    random_tokens = sequences.random_tokens(rng.bits_at(rng.fold_in(keys, 2)[rows], columns), vocab)
    instead = np.where(shown < mask_rate + random_rate, random_tokens, tokens[rows, columns])
    inputs = tokens.copy()
    inputs[rows, columns] = np.where(shown < mask_rate, vocab.mask, instead)
    return inputs


def not_shown(keys: np.ndarray, selected: np.ndarray, mask_rate: float, random_rate: float) -> np.ndarray:
    """bool [E, W]: the selected tokens that `show` does not keep, for the same keys."""
    return selected & (rng.uniform(rng.fold_in(keys, 1), selected.shape[1]) < mask_rate + random_rate)
