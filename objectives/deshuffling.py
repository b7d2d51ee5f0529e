"""Deshuffling (Raffel et al. 2020, section 3.3.1): read the tokens of a text in random order, write the text."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from objectives.algebra import sequences
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class Deshuffling(Objective):
    """T5's `all_permute`: inputs are the text's tokens, every order equally likely; targets are the text.

    T5 shuffles pieces of one document; so does this with data.documents="split", and "join" lets a window run on.
    """

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, field: str) -> list[str]:
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, raw + 1, 2 * (raw + 1))

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        return {}  # by chance a token may stand where it stood

    def hidden(self, tokens, lengths, keys, vocab):
        return np.zeros(tokens.shape, bool)  # shown, every one, elsewhere

    def corrupt(self, tokens, lengths, keys, vocab):
        order = rng.draw(keys, valid_positions(lengths, tokens.shape[1]), lengths)
        shuffled = take(tokens, np.minimum(order, tokens.shape[1] - 1))
        inputs, targets = Sequences(shuffled, lengths), Sequences(tokens, lengths)
        return InputsTargets(sequences.append(inputs, vocab.eos), sequences.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        return targets[:-1]
