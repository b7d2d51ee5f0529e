"""Prompt-masked fine-tuning: examples, packed rows and capacities."""

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import Windows
from objectives import SFT, denoisers_of
from objectives.objective import RowShape
from tests.objectives.helpers import make_collator, sequence, vocab

VOCAB = vocab()
EOS = VOCAB.eos
# Prompt 10 11 12, response 13 14; no prompt, response 20; prompt 30, response 31.
TOKENS = np.asarray([[10, 11, 12, 13, 14], [20, 7, 7, 7, 7], [30, 31, 7, 7, 7]], np.int32)
LENGTHS, PROMPTS = np.asarray([5, 1, 2]), np.asarray([3, 0, 1], np.int32)
WINDOWS = Windows(
    TOKENS, LENGTHS, np.asarray([0, 0, 1]), np.zeros(3, np.uint64), np.zeros(3, np.int32), prompt_lengths=PROMPTS
)


def collator(architecture, *, inputs=12, targets=5, inputs_eos=False, examples_per_row=1):
    shape = RowShape(architecture, inputs, targets, examples_per_row)
    denoisers = denoisers_of(SFT(inputs_eos), "sft")
    return make_collator(denoisers, shape, VOCAB, documents="whole", bidirectional_inputs=False)


@pytest.mark.parametrize("inputs_eos", [False, True])
def test_inputs_are_prompts_and_targets_are_responses(inputs_eos):
    examples = SFT(inputs_eos).corrupt(TOKENS, LENGTHS, np.zeros(3, np.uint64), VOCAB, prompt_lengths=PROMPTS)
    inputs = [sequence(examples.inputs, e) for e in range(3)]
    targets = [sequence(examples.targets, e) for e in range(3)]
    end = [EOS] * inputs_eos
    assert inputs == [[10, 11, 12, *end], end, [30, *end]] and targets == [[13, 14, EOS], [20, EOS], [31, EOS]]


def test_a_packed_decoder_row_scores_responses_alone():
    batch = collator("decoder_only")(WINDOWS, 2)
    expected = {
        "decoder_target_tokens": [10, 11, 12, 13, 14, EOS, 20, EOS, 0, 0, 0, 0],
        "decoder_input_tokens": [0, 10, 11, 12, 13, 14, 0, 20, 0, 0, 0, 0],
        "decoder_loss_weights": [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0, 0],
        "decoder_positions": [0, 1, 2, 3, 4, 5, 0, 1, 0, 0, 0, 0],
        "decoder_bidirectional_mask": [0] * 12,
    }
    assert {name: batch[name][0].astype(int).tolist() for name in expected} == expected


def test_a_packed_encoder_decoder_row_has_prompts_in_the_encoder_and_responses_in_the_decoder():
    batch = collator("encoder_decoder", inputs=5)(WINDOWS, 2)
    expected = {
        "encoder_input_tokens": [10, 11, 12, EOS, 0],  # the inputs of an empty prompt are one EOS
        "encoder_segment_ids": [1, 1, 1, 2, 0],
        "decoder_target_tokens": [13, 14, EOS, 20, EOS],
        "decoder_input_tokens": [0, 13, 14, 0, 20],
        "decoder_loss_weights": [1, 1, 1, 1, 1],
        "decoder_segment_ids": [1, 1, 1, 2, 2],
    }
    assert {name: batch[name][0].astype(int).tolist() for name in expected} == expected


@pytest.mark.parametrize(
    ("inputs_eos", "positions"), [(False, [[6, 2, 3], [3, 0, 1], [3, 2, 2]]), (True, [[7, 3, 4], [4, 1, 2], [3, 2, 2]])]
)
def test_capacities_count_the_positions_of_examples(inputs_eos, positions):
    """positions: those of the three examples in a decoder-only row, in an encoder and in its decoder."""
    counted = [
        (capacity.prompt * PROMPTS + capacity.response * (LENGTHS - PROMPTS) + capacity.special).tolist()
        for architecture in ("decoder_only", "encoder_decoder")
        for capacity in collator(architecture, inputs_eos=inputs_eos).batch_spec.windows[0].capacities
    ]
    assert counted == positions
    examples = SFT(inputs_eos).corrupt(TOKENS, LENGTHS, np.zeros(3, np.uint64), VOCAB, prompt_lengths=PROMPTS)
    assert (examples.inputs.lengths + examples.targets.lengths).tolist() == positions[0]
    assert examples.inputs.lengths.tolist() == positions[1] and examples.targets.lengths.tolist() == positions[2]


def test_rows_too_short_for_a_document_and_several_examples_per_row_raise():
    with pytest.raises(ConfigError, match=r"data\.targets_length=1 is too short for sft: set it to 2 or more"):
        collator("encoder_decoder", targets=1)
    with pytest.raises(ConfigError, match=r"data\.inputs_length=2 is too short for sft: set it to 3 or more"):
        collator("decoder_only", inputs=2, inputs_eos=True)
    message = r"data\.examples_per_row=2 does not go with data\.documents='whole', which puts as many documents into a"
    with pytest.raises(ConfigError, match=message):
        collator("decoder_only", examples_per_row=2)
