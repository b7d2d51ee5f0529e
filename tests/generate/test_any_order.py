"""Answers of a run of any-order language modeling: decoding, masks at their places, and prompts."""

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from generate.fill_masks import check_row, mask_probabilities, masked_batch
from generate.sampling import Request
from generate.texts import NamedText, Options, read_texts
from models import decoding
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.objectives.test_any_order import POSITIONS, model_of, rows_in_order
from tests.table import small_experiment


@pytest.mark.parametrize("positions", POSITIONS)
def test_decoding_from_left_to_right_has_the_logits_of_a_training_row(positions):
    config = model_of(positions)
    params, text = tiny.params(config), np.arange(10, 18)
    batch = rows_in_order([text], [range(8)])
    expected = np.asarray(tiny.run(config, params, batch))[0]
    prompt = {name: array[:, :3] for name, array in batch.items() if name != "decoder_target_positions"}
    logits, cache = decoding.prefill(config, params, prompt, decoding.init_cache(config, params, prompt, 8))
    found = [logits[0]]
    for token in text[2:7]:
        logits, cache = decoding.decode_step(config, params, np.array([token]), cache)
        found.append(logits[0])
    np.testing.assert_allclose(found, expected[2:], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def shuffled():
    return small_experiment("sigma_gpt:shuffled", "decoder_only", data__inputs_length=8)


@pytest.mark.parametrize("masks", [(3,), (0, 2, 5), (1, 2, 3, 4, 5), (5,), tuple(range(6))])
def test_each_mask_is_predicted_from_the_visible_tokens_as_in_training(shuffled, masks):
    text, params = np.arange(50, 56), params_of(shuffled.learner)["transformer"]
    prompt = text.copy()
    prompt[list(masks)] = shuffled.vocab.mask
    [found] = mask_probabilities(shuffled, params, [prompt.astype(np.int32)])
    content = np.s_[shuffled.vocab.content_start : shuffled.vocab.content_end]
    visible = [place for place in range(6) if place not in masks]
    for number, place in enumerate(masks):
        order = [*visible, place, *(other for other in masks if other != place)]
        logits = tiny.run(shuffled.model, params, rows_in_order([text], [order], length=8))
        ratios = np.log(found[number, content]) - jax.nn.log_softmax(logits[0, len(visible)])[content]
        np.testing.assert_allclose(ratios - ratios[0], 0, atol=1e-4)


def test_rows_of_masks_by_hand(shuffled):
    mask = shuffled.vocab.mask
    batch = masked_batch(shuffled, [np.array([10, mask, 12, mask], np.int32), np.array([mask, 20], np.int32)])
    expected = {
        "decoder_input_tokens": [[0, 10, 12, 12, 0, 0, 0, 0], [0, 20, 0, 0, 0, 0, 0, 0]],
        "decoder_positions": [[0, 1, 3, 3, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0, 0, 0]],
        "decoder_target_positions": [[0, 2, 1, 3, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
        "decoder_attention_order": [[0, 0, -1, -2, 0, 0, 0, 0], [0, -1, 0, 0, 0, 0, 0, 0]],
    }
    assert {name: batch[name].tolist() for name in expected} == expected


def test_prompts_are_continued_or_filled_in(shuffled):
    read, _ = read_texts(shuffled, [NamedText("ab", "--prompt")], Options())
    assert isinstance(read[0], Request) and read[0].max_tokens == 6
    read, _ = read_texts(shuffled, [NamedText("a[MASK]b", "--prompt")], Options(order="left_to_right"))
    assert read[0].tolist() == [ord("a") + 3, shuffled.vocab.mask, ord("b") + 3]
    with pytest.raises(ConfigError, match="--prompt has 9 tokens"):
        check_row(shuffled, np.full(9, shuffled.vocab.mask), "--prompt")
