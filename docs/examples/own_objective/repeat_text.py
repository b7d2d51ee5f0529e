"""An objective outside cloze: the text, and then the same text again."""

import dataclasses
from typing import ClassVar

import numpy as np

from objectives import OBJECTIVES
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import Continue


@dataclasses.dataclass(frozen=True)
class RepeatText(Objective):
    """Empty inputs; the targets are the text twice, as repeated sequences of induction heads are (Olsson et al. 2022).

    The first copy is language modeling. The second copy measures how well a model copies what it has read.
    """

    has_inputs: ClassVar = False
    repeats_targets: ClassVar = True
    prompting: ClassVar = Continue()

    def output_lengths(self, raw):
        return OutputLengths(np.zeros_like(raw), 2 * raw, 2 * raw)

    def corrupt(self, tokens, lengths, keys, vocab):
        empty = Sequences(np.zeros((len(tokens), 0), np.int32), np.zeros(len(tokens), np.int64))
        places = np.arange(2 * tokens.shape[1])[None, :] % lengths[:, None]  # past 2 * length: padding
        return InputsTargets(empty, Sequences(np.take_along_axis(tokens, places, axis=1), 2 * lengths))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return valid_positions(lengths, tokens.shape[1])

    def restore(self, inputs, targets, vocab):
        return targets[: len(targets) // 2]


OBJECTIVES["repeat_text"] = RepeatText
