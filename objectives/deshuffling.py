"""Deshuffling (Raffel et al. 2020, section 3.3.1): read the tokens of a text in random order, write the text."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences, append
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Rewrite


@dataclasses.dataclass(frozen=True)
class Deshuffling(Objective):
    """T5's `all_permute`: inputs are the text's tokens in an order drawn uniformly from all orders; targets the text.

    T5 shuffles pieces of single documents, as data.documents="split" does; with "join" a window crosses document ends.
    """

    prompting: ClassVar = Rewrite()

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, raw + 1, 2 * (raw + 1))

    def corrupt(self, tokens, lengths, keys, vocab):
        order = rng.draw(keys, valid_positions(lengths, tokens.shape[1]), lengths)
        shuffled = take(tokens, np.minimum(order, tokens.shape[1] - 1))
        inputs, targets = Sequences(shuffled, lengths), Sequences(tokens, lengths)
        return InputsTargets(append(inputs, vocab.eos), append(targets, vocab.eos))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return np.zeros(tokens.shape, bool)

    def restore(self, inputs, targets, vocab):
        return targets[:-1]
