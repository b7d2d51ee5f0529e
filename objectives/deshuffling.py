"""Deshuffling (Raffel et al. 2020, section 3.3.1): read the tokens of a text in random order, write the text."""

import dataclasses
from typing import ClassVar

import numpy as np

from objectives import corruption
from objectives import keys as rng
from objectives.corruption import Sequences
from objectives.examples import Corruption, InputsTargets
from objectives.lengths import OutputLengths
from objectives.noise import take, valid_positions


@dataclasses.dataclass(frozen=True)
class Deshuffling(Corruption):
    """T5's `all_permute`: inputs are the text's tokens, every order equally likely; targets are the text.

    T5 shuffles pieces of one document; so does this with data.documents="split", and "join" lets a window run on.
    """

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = False

    def check(self, where: str) -> list[str]:
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, raw + 1, 2 * (raw + 1))

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def asked(self):
        return {}  # by chance a token may stand where it stood

    def hidden(self, tokens, lengths, keys, vocab):
        return np.zeros(tokens.shape, bool)  # shown, every one, elsewhere

    def corrupt(self, tokens, lengths, keys, vocab):
        order = rng.draw(keys, valid_positions(lengths, tokens.shape[1]), lengths)
        shuffled = take(tokens, np.minimum(order, tokens.shape[1] - 1))
        inputs, targets = Sequences(shuffled, lengths), Sequences(tokens, lengths)
        return InputsTargets(corruption.append(inputs, vocab.eos), corruption.append(targets, vocab.eos))

    def restore(self, inputs, targets, vocab):
        return targets[:-1]
