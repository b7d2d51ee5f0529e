"""Supervised fine-tuning on prompts and responses: read the prompt, predict the response."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.windows import Capacity
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, append, compact
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Respond


@dataclasses.dataclass(frozen=True)
class SFT(Objective):
    """Inputs are the prompt; targets are the response and an EOS, which alone are scored.

    inputs_eos: whether an EOS ends the prompt. T5 and UL2 end all inputs with EOS, which an encoder pre-trained on such
        inputs expects; a decoder pre-trained with CLM does not.

    An example is a whole document, never cut. With an empty prompt the whole text is scored. A decoder reads
    the prompt causally or, with data.bidirectional_inputs, as a prefix that attends to itself.

    Stanford Alpaca's train.py masks the prompt with labels of -100 in the same way, but takes the prompt's length from
    the prompt tokenized alone, which is wrong where a token spans the boundary. Here prompt and response are tokenized
    separately (data/store/encode.py).
    """

    inputs_eos: bool

    documents: ClassVar = ("whole",)
    extra_columns: ClassVar = ("prompt_lengths",)

    @property
    def prompting(self):
        return Respond(self.inputs_eos)

    def output_lengths(self, raw):
        return OutputLengths(raw - 1 + self.inputs_eos, raw + 1, raw + 1 + self.inputs_eos)

    def capacities(self, shape):
        if shape.architecture == "encoder_decoder":
            prompt = Capacity("data.inputs_length", shape.inputs_length, True, False, int(self.inputs_eos))
            return prompt, Capacity("data.targets_length", shape.targets_length, False, True, 1)
        return (Capacity("data.inputs_length", shape.inputs_length, True, True, 1 + self.inputs_eos),)

    def corrupt(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        prompts = Sequences(tokens[:, : int(prompt_lengths.max())], prompt_lengths.astype(np.int64))
        if self.inputs_eos:
            prompts = append(prompts, vocab.eos)
        responses = compact(tokens, self.hidden_mask(tokens, lengths, keys, vocab, prompt_lengths=prompt_lengths))
        return InputsTargets(prompts, append(responses, vocab.eos))

    def hidden_mask(self, tokens, lengths, keys, vocab, *, prompt_lengths):
        width = tokens.shape[1]
        return valid_positions(lengths, width) & ~valid_positions(prompt_lengths, width)

    def restore(self, inputs, targets, vocab):
        return np.concatenate([inputs[: len(inputs) - self.inputs_eos], targets[:-1]])

    def expected(self):
        return {"spans": 1.0}
