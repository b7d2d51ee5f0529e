"""Supervised fine-tuning on prompts and their responses: read the prompt, predict the response."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.windows import Capacity
from objectives.algebra import sequences
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class SFT(Objective):
    """Inputs are the prompt, targets the response and an EOS; only the response and its EOS are scored.

    inputs_eos: whether an EOS ends the prompt. T5 and UL2 end all their inputs so, and an encoder that was pre-trained
        on them expects it; a decoder that was pre-trained on running text (CLM) does not.

    Stanford Alpaca's train.py and most since do the same with labels of -100 on the prompt, and take for its length the
    number of tokens of the prompt alone, in a sequence that was tokenised with the response: a token that spans the
    boundary then makes them disagree. Here prompt and response are tokenised apart (data/writer.py).
    A decoder reads the prompt causally or, with data.bidirectional_inputs, as a prefix that sees itself.
    An example is a whole document, never cut; an empty prompt leaves a text that is all scored.
    """

    inputs_eos: bool

    architectures: ClassVar = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar = ("whole",)
    eos_in_windows: ClassVar = False
    extra_columns: ClassVar = ("prompt_lengths",)

    def check(self, field: str) -> list[str]:
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw - 1 + self.inputs_eos, raw + 1, raw + 1 + self.inputs_eos)

    def capacities(self, shape):
        if shape.architecture == "encoder_decoder":
            inputs = Capacity("data.inputs_length", shape.inputs_length, True, False, int(self.inputs_eos))
            return inputs, Capacity("data.targets_length", shape.targets_length, False, True, 1)
        return (Capacity("data.inputs_length", shape.inputs_length, True, True, 1 + self.inputs_eos),)

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        return {"spans": 1.0}

    def hidden(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        width = tokens.shape[1]
        return valid_positions(lengths, width) & ~valid_positions(prompt_lengths, width)

    def corrupt(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        prompts = Sequences(tokens[:, : int(prompt_lengths.max())], prompt_lengths.astype(np.int64))
        if self.inputs_eos:
            prompts = sequences.append(prompts, vocab.eos)
        responses = sequences.compact(tokens, self.hidden(tokens, lengths, keys, vocab, prompt_lengths=prompt_lengths))
        return InputsTargets(prompts, sequences.append(responses, vocab.eos))

    def restore(self, inputs, targets, vocab):
        return np.concatenate([inputs[: len(inputs) - self.inputs_eos], targets[:-1]])
