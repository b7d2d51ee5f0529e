"""Teacherless training on prompts and responses: the response is predicted without reading any of it."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.windows import Capacity
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, append
from objectives.objective import Masked, Objective, OutputLengths
from objectives.prompting import RespondAtOnce


@dataclasses.dataclass(frozen=True)
class Teacherless(Objective):
    """SFT whose inputs have [MASK] in place of each token of the response and its EOS (Bachmann & Nagarajan 2024).

    Rows, positions and scored targets are those of objectives/sft.py with inputs_eos=False, and rows are read causally:
    a token is predicted where the token before it would be read. The first one is predicted from the prompt alone, and
    each other one from the prompt and the masks before it, which say no more than how many they are (arXiv 2403.06963,
    section 5).

    A trained model answers in one pass, from as many masks as the answer has tokens. Each token is then the likeliest
    one by itself, and no token of the answer depends on another.

    An example is a whole document, never cut. With an empty prompt the whole text is scored.
    """

    architectures: ClassVar = frozenset({"decoder_only"})
    documents: ClassVar = ("whole",)
    extra_columns: ClassVar = ("prompt_lengths",)
    in_place: ClassVar = True
    causal: ClassVar = True
    prompting: ClassVar = RespondAtOnce()

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, np.zeros_like(raw), raw + 1)

    def capacities(self, shape):
        return (Capacity("data.inputs_length", shape.inputs_length, True, True, 1),)

    def corrupt(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        text = append(Sequences(tokens, lengths), vocab.eos)
        width = text.tokens.shape[1]
        hidden = valid_positions(text.lengths, width) & ~valid_positions(prompt_lengths, width)
        shown = np.where(hidden, np.int32(vocab.mask), text.tokens)
        every = np.ones(len(tokens), bool)
        return Masked(Sequences(shown, text.lengths), text.tokens, hidden, shifted=every, causal=every)

    def hidden_mask(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        width = tokens.shape[1]
        return valid_positions(lengths, width) & ~valid_positions(prompt_lengths, width)

    def restore(self, inputs, targets, vocab):
        return targets[:-1]

    def expected(self):
        return {"masked": 1.0, "random": 0.0, "kept": 0.0}
