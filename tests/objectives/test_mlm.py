"""Masked language modelling: how many tokens each variant selects, and what it shows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.mlm import VARIANTS
from contract.errors import ConfigError
from objectives.algebra.masking import mask_selected, replaced
from objectives.algebra.sequences import Sequences
from objectives.mlm import MLM
from tests.objectives.helpers import vocab

VOCAB = vocab()
EOS = VOCAB.eos
MLMS = {name: MLM(**fields) for name, fields in VARIANTS.items()}
BERT, ROBERTA = MLMS["bert"], MLMS["roberta"]
every_variant = pytest.mark.parametrize("mlm", MLMS.values(), ids=MLMS)


def some_keys(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def random_text(shape, seed=0):
    return np.random.default_rng(seed).integers(3, 259, shape).astype(np.int32)


def test_what_each_draw_shows_by_hand(monkeypatch):
    """Draws below 0.8 mask, from 0.8 to below 0.9 are random, from 0.9 keep."""
    monkeypatch.setattr("objectives.algebra.masking.rng.as_uniform", lambda bits: np.asarray([0.79, 0.8, 0.89, 0.9]))
    monkeypatch.setattr("objectives.algebra.masking.random_tokens", lambda *_: np.asarray([201, 202, 203, 204]))
    tokens = np.arange(10, 16, dtype=np.int32)[None]
    selected = np.asarray([[0, 1, 1, 0, 1, 1]], bool)
    shown = mask_selected(some_keys(1), tokens, selected, VOCAB, 0.8, 0.1)
    assert shown.tolist() == [[10, VOCAB.mask, 202, 13, 203, 15]]


def test_what_is_shown_by_one_token_is_not_by_chance_another_for_the_same_keys():
    """`not_shown` knows of every token that `show` changed; a random token may happen to be the one it stands for."""
    keys, tokens, selected = some_keys(100), random_text((100, 80)), random_text((100, 80), 1) < 120
    inputs = mask_selected(keys, tokens, selected, VOCAB, 0.5, 0.2)
    hidden = replaced(keys, selected, 0.5, 0.2)
    assert not (hidden & ~selected).any() and (inputs == tokens)[~hidden].all()
    assert (inputs == tokens)[hidden].mean() < 0.01


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_bert_selects_exactly_and_gives_back_the_text(lengths, seed):
    lengths = np.asarray(lengths)
    tokens = random_text((len(lengths), lengths.max()), seed)
    made = BERT.corrupt(tokens, lengths, some_keys(len(lengths), seed), VOCAB)
    for e, length in enumerate(lengths):
        size = length + 2
        inputs, targets = made.inputs.tokens[e, :size], made.targets[e, :size]
        assert targets.tolist() == [VOCAB.cls, *tokens[e, :length].tolist(), VOCAB.sep]
        selected = made.selected[e]
        assert selected[:size].sum() == min(max(1, round(0.15 * size)), length) and not selected[size:].any()
        assert not selected[0] and not selected[size - 1]
        assert (inputs == targets)[~selected[:size]].all()


@pytest.mark.parametrize("mlm", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_every_position_is_selected_as_often_and_a_special_token_never(mlm):
    n, length = 400, 200
    tokens = random_text((n, length))
    tokens[:, 50] = EOS  # a document's end inside the window
    selected = mlm.corrupt(tokens, np.full(n, length), some_keys(n), VOCAB).selected
    assert not selected[:, [0, 51, 201]].any()
    assert np.abs(np.delete(selected.mean(axis=0)[1:-1], 50) - 30.3 / 199).max() < 0.09


@every_variant
def test_80_10_10(mlm):
    n, length = 400, 200
    made = mlm.corrupt(random_text((n, length)), np.full(n, length), some_keys(n), VOCAB)
    shown, truth = made.inputs.tokens[made.selected], made.targets[made.selected]
    masked, kept = shown == VOCAB.mask, shown == truth
    assert masked.mean() == pytest.approx(0.8, abs=0.012)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.01)
    assert shown[~masked].min() >= 3 and shown[~masked].max() < 259


def test_robertas_count_is_the_rates_share_on_average():
    """99 tokens and two specials: 15.15, so 15 or 16, the latter in 15% of the examples. BERT always selects 15."""
    n = 4000
    tokens, lengths = random_text((n, 99)), np.full(n, 99)
    counts = ROBERTA.corrupt(tokens, lengths, some_keys(n), VOCAB).selected.sum(axis=1)
    assert set(counts.tolist()) == {15, 16}
    assert (counts == 16).mean() == pytest.approx(0.15, abs=0.025)
    assert (BERT.corrupt(tokens, lengths, some_keys(n), VOCAB).selected.sum(axis=1) == 15).all()


def test_robertas_count_by_hand(monkeypatch):
    """Twenty positions: int(3 + 0.99) = 3; 21: int(3.15 + 0.84) = 3, int(3.15 + 0.86) = 4; 3: int(0.45 + 0.5) is 0."""
    monkeypatch.setattr("objectives.mlm.rng.uniform", lambda *_: np.asarray([[0.99], [0.84], [0.86], [0.5]]))
    text = Sequences(random_text((4, 21)), np.asarray([20, 21, 21, 3]))
    assert ROBERTA.select(text, some_keys(4), VOCAB).sum(axis=1).tolist() == [3, 3, 4, 1]


@every_variant
def test_short_texts_and_specials_only(mlm):
    """A text of one token has it selected; one of special tokens has nothing selected, in whatever company."""
    tokens = np.asarray([[7, EOS, EOS], [EOS, EOS, EOS], [EOS, 9, EOS]], np.int32)
    made = mlm.corrupt(tokens, np.asarray([1, 3, 3]), some_keys(3), VOCAB)
    assert made.selected.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    made = mlm.corrupt(tokens[1:2], np.asarray([3]), some_keys(1), VOCAB)
    assert not made.selected.any()
    assert made.inputs.tokens.tolist() == made.targets.tolist() == [[VOCAB.cls, EOS, EOS, EOS, VOCAB.sep]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_rate": 1.5}, r"objective.mask_rate=1.5 must lie between 0 and 1"),
        ({"mask_token_rate": 0.95}, r"add up to more than 1"),
        ({"mask_token_rate": -0.1}, r"objective.mask_token_rate=-0.1 must lie between"),
        ({"ngram_weights": ()}, r"objective.ngram_weights=\(\) must hold weights"),
        ({"ngram_weights": (0.0, 0.0)}, r"objective.ngram_weights=\(0.0, 0.0\) must hold weights"),
        ({"ngram_weights": (1.0, -0.1)}, r"objective.ngram_weights=\(1.0, -0.1\) must hold weights"),
        ({"ngram_weights": (float("nan"),)}, r"objective.ngram_weights=\(nan,\) must hold weights"),
    ],
)
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(BERT, **fields).check("objective")


def test_unusual_mask_rates_draw_a_warning():
    assert BERT.check("objective") == []
    for rate in (0.04, 0.41):
        (warning,) = dataclasses.replace(BERT, mask_rate=rate).check("objective")
        assert f"objective.mask_rate={rate}" in warning
