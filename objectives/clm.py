"""Causal language modeling: predict every token from the tokens before it in its document."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.windows import DocumentHandling
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Continue


@dataclasses.dataclass(frozen=True)
class CLM(Objective):
    """Empty inputs; targets are the text, in which an EOS ends each document.

    On an encoder-decoder the encoder reads a single EOS, and the decoder is a language model of the same text. T5's
    paper has no such row: its "LM" on an encoder-decoder is prefix LM.
    """

    documents: ClassVar[tuple[DocumentHandling, ...]] = ("join", "pack", "split")
    eos_in_windows: ClassVar = True
    has_inputs: ClassVar = False
    byte_metric: ClassVar = "bits_per_byte"  # of the text in its order, with the EOS of documents
    prompting: ClassVar = Continue()

    def output_lengths(self, raw):
        return OutputLengths(np.zeros_like(raw), raw, raw)

    def corrupt(self, tokens, lengths, keys, vocab):
        empty = Sequences(np.zeros((len(tokens), 0), np.int32), np.zeros(len(tokens), np.int64))
        return InputsTargets(empty, Sequences(tokens, lengths))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return valid_positions(lengths, tokens.shape[1])

    def restore(self, inputs, targets, vocab):
        return targets

    def expected(self):
        return {"corrupted": 1.0}
