"""Masked language modelling: how many tokens each variant selects, and what it shows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.mlm import VARIANTS
from contract.errors import ConfigError
from objectives.algebra.sequences import Sequences
from objectives.mlm import MLM, mask_selected, replaced
from tests.objectives.helpers import random_keys, vocab

VOCAB = vocab()
EOS = VOCAB.eos
MLMS = {name: MLM(**fields) for name, fields in VARIANTS.items() if "schedule" not in fields}
BERT, ROBERTA = MLMS["bert"], MLMS["roberta"]
every_variant = pytest.mark.parametrize("mlm", MLMS.values(), ids=MLMS)


@pytest.mark.parametrize("length", [3, 18])
def test_a_uniform_rate_hides_every_number_of_tokens_equally_often(length):
    """Of texts of `length` tokens and an EOS, which is never hidden."""
    texts = np.concatenate([random_text((20_000, length)), np.full((20_000, 1), EOS, np.int32)], axis=1)
    lengths = np.full(20_000, length + 1)
    mlm = MLMS["mlm_u"]
    counts = mlm.corrupt(texts, lengths, random_keys(20_000), VOCAB).selected.sum(axis=1)
    assert counts.min() == 1 and counts.max() == length < mlm.most_scored(lengths[:1])[0]
    np.testing.assert_allclose(np.bincount(counts)[1:] / 20_000, 1 / length, rtol=0.15)
    lower = dataclasses.replace(mlm, mask_rate=0.25)  # 1 + floor(U[0, length / 2)): 1 or 2 of 3 tokens, 1 to 9 of 18
    counts = lower.corrupt(texts, lengths, random_keys(20_000), VOCAB).selected.sum(axis=1)
    assert (counts.min(), counts.max()) == (1, -(-length // 2))
    np.testing.assert_allclose((counts == 1).mean(), 2 / length, rtol=0.1)
    with pytest.raises(ConfigError, match=r"objective\.mask_rate=0\.6 must be 0\.5 or less with .*'uniform'"):
        dataclasses.replace(MLMS["mlm_u"], mask_rate=0.6).check("objective")


def random_text(shape, seed=0):
    return np.random.default_rng(seed).integers(3, 259, shape).astype(np.int32)


def test_the_draw_of_a_selected_token_decides_between_mask_random_and_keep(monkeypatch):
    """Mask for draws below 0.8, a random token below 0.9, and the token itself from 0.9."""
    monkeypatch.setattr("objectives.mlm.rng.as_uniform", lambda bits: np.asarray([0.79, 0.8, 0.89, 0.9]))
    monkeypatch.setattr("objectives.mlm.random_tokens", lambda *_: np.asarray([201, 202, 203, 204]))
    tokens = np.arange(10, 16, dtype=np.int32)[None]
    selected = np.asarray([[0, 1, 1, 0, 1, 1]], bool)
    inputs = mask_selected(random_keys(1), tokens, selected, VOCAB, 0.8, 0.1)
    assert inputs.tolist() == [[10, VOCAB.mask, 202, 13, 203, 15]]


def test_replaced_is_true_of_every_token_that_mask_selected_replaces():
    """Including the few whose random replacement equals them by chance."""
    keys, tokens, selected = random_keys(100), random_text((100, 80)), random_text((100, 80), 1) < 120
    inputs = mask_selected(keys, tokens, selected, VOCAB, 0.5, 0.2)
    is_replaced = replaced(keys, selected, 0.5, 0.2)
    assert not (is_replaced & ~selected).any() and (inputs == tokens)[~is_replaced].all()
    assert (inputs == tokens)[is_replaced].mean() < 0.01


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_bert_selects_an_exact_count_and_its_targets_are_the_text(lengths, seed):
    lengths = np.asarray(lengths)
    tokens = random_text((len(lengths), lengths.max()), seed)
    examples = BERT.corrupt(tokens, lengths, random_keys(len(lengths), seed), VOCAB)
    for e, length in enumerate(lengths):
        size = length + 2
        inputs, targets = examples.inputs.tokens[e, :size], examples.targets[e, :size]
        assert targets.tolist() == [VOCAB.cls, *tokens[e, :length].tolist(), VOCAB.sep]
        selected = examples.selected[e]
        assert selected[:size].sum() == min(max(1, round(0.15 * size)), length) and not selected[size:].any()
        assert not selected[0] and not selected[size - 1]
        assert (inputs == targets)[~selected[:size]].all()


@pytest.mark.parametrize("mlm", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_ordinary_tokens_are_selected_equally_often_and_special_tokens_never(mlm):
    n, length = 400, 200
    tokens = random_text((n, length))
    tokens[:, 50] = EOS  # a document ends within the window
    selected = mlm.corrupt(tokens, np.full(n, length), random_keys(n), VOCAB).selected
    assert not selected[:, [0, 51, 201]].any()
    assert np.abs(np.delete(selected.mean(axis=0)[1:-1], 50) - 30.3 / 199).max() < 0.09


def test_roberta_rounds_its_count_by_a_random_draw_and_selects_at_least_one(monkeypatch):
    """20 positions: int(3 + 0.99) = 3. 21 positions: int(3.15 + 0.84) = 3 and int(3.15 + 0.86) = 4.
    3 positions: int(0.45 + 0.5) = 0, raised to 1."""
    monkeypatch.setattr("objectives.mlm.rng.uniform", lambda *_: np.asarray([[0.99], [0.84], [0.86], [0.5]]))
    text = Sequences(random_text((4, 21)), np.asarray([20, 21, 21, 3]))
    assert ROBERTA.select(text, random_keys(4), VOCAB).sum(axis=1).tolist() == [3, 3, 4, 1]


@every_variant
def test_the_only_ordinary_token_is_selected_and_special_tokens_are_not(mlm):
    """In a batch of other texts and, for the text of special tokens, in a batch of its own."""
    tokens = np.asarray([[7, EOS, EOS], [EOS, EOS, EOS], [EOS, 9, EOS]], np.int32)
    examples = mlm.corrupt(tokens, np.asarray([1, 3, 3]), random_keys(3), VOCAB)
    assert examples.selected.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    examples = mlm.corrupt(tokens[1:2], np.asarray([3]), random_keys(1), VOCAB)
    assert not examples.selected.any()
    assert examples.inputs.tokens.tolist() == examples.targets.tolist() == [[VOCAB.cls, EOS, EOS, EOS, VOCAB.sep]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_token_rate": 0.95}, r"add up to more than 1"),
        ({"ngram_weights": ()}, r"objective.ngram_weights=\(\) must hold weights"),
        ({"ngram_weights": (0.0, 0.0)}, r"objective.ngram_weights=\(0.0, 0.0\) must hold weights"),
        ({"ngram_weights": (float("nan"),)}, r"objective.ngram_weights=\(nan,\) must be 0 or more, and finite"),
    ],
)
def test_invalid_fields_raise(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(BERT, **fields).check("objective")
