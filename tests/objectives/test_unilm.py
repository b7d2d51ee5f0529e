"""UniLM's four attention patterns: the sequences, and the attention order of their tokens."""

import dataclasses

import numpy as np
import pytest

from configs.unilm import VARIANTS, get_config
from experiment.experiment import make_experiment
from generate.fill_masks import masked_batch, read_masked_prompt
from objectives.mlm import MLM
from objectives.unilm import UniLM
from tests.objectives.helpers import random_keys, vocab

VOCAB = vocab()
CLS, SEP, MASK = VOCAB.cls, VOCAB.sep, VOCAB.mask
_PATTERNS = {name: fields for name, fields in VARIANTS.items() if name != "unilm"}
UNILMS = {name: UniLM(**{k: v for k, v in fields.items() if k != "name"}) for name, fields in _PATTERNS.items()}


@pytest.mark.parametrize(
    ("attention", "targets", "orders"),
    [
        ("bidirectional", [[CLS, 7, 8, 9, SEP], [CLS, 7, SEP]], [[0, 0, 0, 0, 0], [0, 0, 0]]),
        ("left_to_right", [[CLS, 7, 8, 9, SEP], [CLS, 7, SEP]], [[0, 1, 2, 3, 4], [0, 1, 2]]),
        ("right_to_left", [[CLS, 7, 8, 9, SEP], [CLS, 7, SEP]], [[4, 3, 2, 1, 0], [2, 1, 0]]),
        ("sequence_to_sequence", [[CLS, 7, 8, SEP, 9, SEP], [CLS, SEP, 7, SEP]], [[0, 0, 0, 0, 1, 2], [0, 0, 1, 2]]),
    ],
)
def test_each_pattern_has_its_targets_and_attention_order(monkeypatch, attention, targets, orders):
    """The texts are 7 8 9, which is cut after its second token, and 7, which is cut before it."""
    ranges = []

    def integers(keys, low, high):
        ranges.append((low.tolist(), high.tolist()))
        return high

    monkeypatch.setattr("objectives.unilm.rng.integers", integers)
    unilm = UNILMS[attention]
    tokens, lengths, keys = np.asarray([[7, 8, 9], [7, 99, 99]], np.int32), np.asarray([3, 1]), random_keys(2)
    examples = unilm.corrupt(tokens, lengths, keys, VOCAB)
    assert ranges == [([1, 0], [2, 0])]
    hidden = unilm.hidden_mask(tokens, lengths, keys, VOCAB)
    for e, length in enumerate(examples.inputs.lengths):
        assert examples.targets[e, :length].tolist() == targets[e]
        assert examples.attention_order[e, :length].tolist() == orders[e]
        assert examples.selected[e].sum() == 1 and targets[e][np.flatnonzero(examples.selected[e])[0]] < VOCAB.mask
        assert (
            unilm.restore(examples.inputs.tokens[e, :length], examples.targets[e, :length], VOCAB).tolist()
            == tokens[e, : lengths[e]].tolist()
        )
    assert examples.inputs.lengths.tolist() == unilm.output_lengths(lengths).inputs.tolist()
    assert hidden.sum() == ((examples.inputs.tokens != examples.targets) & examples.selected).sum()


@pytest.mark.parametrize(
    ("attention", "order"),
    [
        ("bidirectional", [0, 0, 0, 0]),
        ("left_to_right", [0, 1, 2, 3]),
        ("right_to_left", [3, 2, 1, 0]),
        ("sequence_to_sequence", [0, 0, 0, 0]),
    ],
)
def test_a_prompt_has_the_attention_order_of_the_runs_pattern(attention, order):
    """[CLS] a [MASK] [SEP]; for sequence_to_sequence the whole prompt is the first segment."""
    experiment = make_experiment(get_config(attention).to_dict())
    text = read_masked_prompt(experiment, "a[MASK]")
    batch = masked_batch(experiment, [text])
    assert batch["encoder_input_tokens"][0, :4].tolist() == [CLS, ord("a") + 3, MASK, SEP]
    assert batch["encoder_attention_order"][0, :4].tolist() == order


def test_every_cut_is_equally_likely():
    n = 4000
    examples = UNILMS["sequence_to_sequence"].corrupt(
        np.full((n, 5), 7, np.int32), np.full(n, 5), random_keys(n), VOCAB
    )
    cuts = np.argmax(examples.targets == SEP, axis=1) - 1
    counts = np.bincount(cuts, minlength=5)
    assert counts[0] == 0 and counts.sum() == counts[1:5].sum()
    assert np.abs(counts[1:] - n / 4).max() < 5 * np.sqrt(n / 4)


def test_the_bidirectional_pattern_equals_mlm():
    """In selected positions and inputs, for the same keys."""
    unilm = UNILMS["bidirectional"]
    mlm = MLM(**{field.name: getattr(unilm, field.name) for field in dataclasses.fields(MLM)})
    tokens = np.random.default_rng(0).integers(3, 259, (5, 60)).astype(np.int32)
    lengths = np.asarray([60, 1, 17, 40, 2])
    examples, expected = (objective.corrupt(tokens, lengths, random_keys(5), VOCAB) for objective in (unilm, mlm))
    for inputs, expected_inputs, n in zip(examples.inputs.tokens, expected.inputs.tokens, lengths, strict=True):
        assert inputs[: n + 2].tolist() == expected_inputs[: n + 2].tolist()
    np.testing.assert_array_equal(examples.selected, expected.selected)
    assert expected.attention_order is None and not examples.attention_order.any()
