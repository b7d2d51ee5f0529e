"""Causal language modelling: predict every token from those before it in its document."""

import dataclasses
from typing import ClassVar

import numpy as np

from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class CLM(Objective):
    """Nothing to read, everything to predict; an EOS ends each document.

    On an encoder-decoder the encoder reads one EOS, so the decoder is a language model of the same text (T5's paper
    has no such row: its "LM" on an encoder-decoder is prefix LM).
    """

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("join", "pack", "split")
    eos_in_windows: ClassVar = True

    def check(self, field: str) -> list[str]:
        return []

    def output_lengths(self, raw):
        return OutputLengths(np.zeros_like(raw), raw, raw)

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        return {"corrupted": 1.0}

    def hidden(self, tokens, lengths, keys, vocab):
        return valid_positions(lengths, tokens.shape[1])

    def corrupt(self, tokens, lengths, keys, vocab):
        empty = Sequences(np.zeros((len(tokens), 0), np.int32), np.zeros(len(tokens), np.int64))
        return InputsTargets(empty, Sequences(tokens, lengths))

    def restore(self, inputs, targets, vocab):
        return targets
