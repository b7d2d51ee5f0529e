"""Objectives that make more than they declare: one line that names the member to define."""

import dataclasses

import numpy as np
import pytest

from contract.vocab import Vocab
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths
from tests.objectives.helpers import collator as collator_of
from tests.objectives.helpers import random_windows
from tests.table import objective_of

BERT, PREFIX_LM = objective_of("mlm"), objective_of("prefix_lm")


def longer(sequences: Sequences) -> Sequences:
    return Sequences(np.pad(sequences.tokens, ((0, 0), (0, 2)), constant_values=3), sequences.lengths + 2)


class Understated(type(PREFIX_LM)):
    """Prefix LM with two more tokens than it declares in the inputs, the targets, or both."""

    grows: tuple[str, ...] = ()
    prompting = PREFIX_LM.__class__.prompting
    hidden_mask = PREFIX_LM.__class__.hidden_mask
    restore = PREFIX_LM.__class__.restore
    byte_metric = PREFIX_LM.byte_metric
    has_inputs = PREFIX_LM.has_inputs
    most_scored = Objective.most_scored

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        examples: InputsTargets = super().corrupt(tokens, lengths, keys, vocab, **columns)
        return examples._replace(**{name: longer(getattr(examples, name)) for name in self.grows})


class InputsGrow(Understated):
    grows = ("inputs",)


class TargetsGrow(Understated):
    grows = ("targets",)


class ScoresLess(Understated):
    def most_scored(self, raw):
        return np.zeros_like(raw)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (InputsGrow, "makes 6 inputs of a window of 6 tokens, and output_lengths returns 4 for inputs: define output_"),
        (
            TargetsGrow,
            "makes 6 targets of a window of 6 tokens, and output_lengths returns 4 for targets: define output_",
        ),
        (ScoresLess, "makes 6 targets of a window of 10 tokens, and most_scored returns 0: define most_scored"),
    ],
)
def test_more_tokens_than_declared_are_one_line(objective, message):
    fixed = {"target_fraction": 0.5, "split": "fixed", "sentinel": False}
    understated = objective(**fixed)
    windows = random_windows(np.random.default_rng(0), [6, 10])
    collator_of(Understated(**fixed), "encoder_decoder")(windows, 2)
    with pytest.raises(TypeError, match=f"^{objective.__name__}.corrupt {message}"):
        collator_of(understated, "encoder_decoder")(windows, 2)


class Eager(type(BERT)):
    """MLM that selects more than its inherited bound allows: two more tokens."""

    def select(self, text: Sequences, keys: np.ndarray, vocab: Vocab, whole: np.ndarray | None = None) -> np.ndarray:
        selected = super().select(text, keys, vocab, whole)
        selected[:, 1:3] = True
        return selected


def test_an_objective_that_scores_more_than_it_declares_raises_one_line():
    eager = Eager(**{field.name: getattr(BERT, field.name) for field in dataclasses.fields(BERT)})
    windows = random_windows(np.random.default_rng(0), [4])
    with pytest.raises(TypeError, match=r"^Eager.corrupt selects . positions of a window of 4 tokens, .* 1: define"):
        collator_of(eager, "encoder_only")(windows, 1)


class Longer(type(BERT)):
    """MLM whose examples have [CLS] and [SEP], which it does not declare."""

    def output_lengths(self, raw):
        return OutputLengths(raw, np.zeros_like(raw), raw)


def test_positions_in_place_that_are_not_declared_are_one_line():
    longer = Longer(**{field.name: getattr(BERT, field.name) for field in dataclasses.fields(BERT)})
    windows = random_windows(np.random.default_rng(0), [4])
    with pytest.raises(
        TypeError, match=r"^Longer.corrupt makes 6 positions of a window of 4 tokens, and output_lengths"
    ):
        collator_of(longer, "encoder_only")(windows, 1)
