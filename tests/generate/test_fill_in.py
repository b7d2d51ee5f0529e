"""The order and the steps in which masks are filled in, with a model whose probabilities are known."""

import types

import numpy as np
import pytest

from contract.errors import ConfigError
from generate import fill_masks
from generate.fill_masks import fill_in, first_masks, read_masked_prompt
from tests.table import small_experiment

MASK = 9
PROBABILITIES = np.array(
    [[0.4, 0.39, 0.2, 0.01], [0.5, 0.1, 0.1, 0.3], [0.45, 0.45, 0.05, 0.05], [0.36, 0.04, 0.3, 0.3]], np.float32
)  # margins 0.01, 0.2, 0.0, 0.06; likeliest 0.4, 0.5, 0.45, 0.36


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("margin", [1, 3, 0, 2]),
        ("probability", [1, 2, 0, 3]),
        ("left_to_right", [0, 1, 2, 3]),
        ("entropy", [2, 0, 1, 3]),  # 1.02, 1.12, 1.17, 1.22 nats
    ],
)
def test_masks_by_order(order, expected):
    random = np.random.default_rng(0)
    assert first_masks(PROBABILITIES, order, 4, random).tolist() == expected
    assert first_masks(PROBABILITIES, order, 2, random).tolist() == expected[:2]


def test_a_random_order_has_each_mask_first_equally_often():
    random = np.random.default_rng(0)
    first = [int(first_masks(PROBABILITIES, "random", 1, random)[0]) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(first) / 4000, 0.25, atol=0.03)


@pytest.fixture
def seen(monkeypatch):
    """The texts that the model read, in order. It knows the token of a place: the place's number, modulo 4."""
    seen = []

    def probabilities(experiment, params, texts, *, batch_size):
        seen.append([text.tolist() for text in texts])
        for text in texts:
            places = np.flatnonzero(text == MASK)
            yield np.eye(4, dtype=np.float32)[places % 4] * 0.9 + 0.025

    monkeypatch.setattr(fill_masks, "mask_probabilities", probabilities)
    return seen


def fill(texts, **options):
    experiment = types.SimpleNamespace(vocab=types.SimpleNamespace(mask=MASK))
    chosen = {"order": "left_to_right", "steps": 0, "temperature": 0.0, "seed": 0} | options
    return [text.tolist() for text, _ in fill_in(experiment, {}, [np.array(text) for text in texts], **chosen)]


def test_one_mask_in_each_step_and_visible_tokens_stay(seen):
    assert fill([[7, MASK, 7, MASK, MASK], [MASK]]) == [[7, 1, 7, 3, 0], [0]]
    assert seen == [[[7, 9, 7, 9, 9], [9]], [[7, 1, 7, 9, 9]], [[7, 1, 7, 3, 9]]]


def test_steps_divide_the_masks_evenly(seen):
    assert fill([[MASK] * 5], steps=2) == [[0, 1, 2, 3, 0]]
    assert [texts[0].count(MASK) for texts in seen] == [5, 2]
    seen.clear()
    assert fill([[MASK] * 5], order="once") == [[0, 1, 2, 3, 0]] and len(seen) == 1


def test_draws_have_the_models_probabilities_at_temperature_1_and_do_not_depend_on_other_texts(seen):
    drawn = [fill([[MASK] * 8], temperature=1.0, order="random", seed=seed)[0] for seed in range(500)]
    np.testing.assert_allclose(np.mean(np.array(drawn) == np.arange(8) % 4), 0.925, atol=0.02)
    both = fill([[MASK] * 8, [MASK] * 3], temperature=1.0, order="random", seed=3)
    assert both[0] == drawn[3]


def test_masks_are_appended_to_a_prompt_without_masks_alone():
    experiment = small_experiment("masked_diffusion", "encoder_only")
    assert read_masked_prompt(experiment, "ab", max_tokens=3)[2:].tolist() == [experiment.vocab.mask] * 3
    with pytest.raises(ConfigError, match=r"--max_tokens=3 appends masks, and --prompt has masks: remove one"):
        read_masked_prompt(experiment, "a[MASK]", max_tokens=3)
