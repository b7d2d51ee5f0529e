"""Deshuffling: the inputs are the text in a random order, and the targets are the text."""

import numpy as np

from objectives import Deshuffling
from tests.objectives.helpers import random_keys, sequence, vocab


def shuffled(n, length):
    tokens = np.tile(np.arange(10, 10 + length, dtype=np.int32), (n, 1))
    return Deshuffling().corrupt(tokens, np.full(n, length), random_keys(n), vocab())


def test_inputs_are_in_the_drawn_order(monkeypatch):
    monkeypatch.setattr("objectives.deshuffling.rng.draw", lambda *_: np.asarray([[3, 0, 2, 1]]))
    examples = shuffled(1, 4)
    assert sequence(examples.inputs) == [13, 10, 12, 11, 1] and sequence(examples.targets) == [10, 11, 12, 13, 1]


def test_every_order_is_equally_likely():
    examples = shuffled(12_000, 4)
    orders, counts = np.unique(examples.inputs.tokens[:, :4], axis=0, return_counts=True)
    assert len(orders) == 24 and (np.abs(counts - 500) < 110).all()  # 110: five standard deviations


def test_a_text_of_one_token_is_unchanged():
    examples = shuffled(1, 1)
    assert sequence(examples.inputs) == sequence(examples.targets) == [10, 1]
