import numpy as np

from objectives import Deshuffling
from tests.objectives.helpers import sequence, vocab


def shuffled(n, length):
    tokens = np.tile(np.arange(10, 10 + length, dtype=np.int32), (n, 1))
    keys = np.random.default_rng(0).integers(0, 2**63, n).astype(np.uint64)
    return Deshuffling().corrupt(tokens, np.full(n, length), keys, vocab())


def test_by_hand(monkeypatch):
    monkeypatch.setattr("objectives.deshuffling.rng.draw", lambda *_: np.asarray([[3, 0, 2, 1]]))
    made = shuffled(1, 4)
    assert sequence(made.inputs) == [13, 10, 12, 11, 1] and sequence(made.targets) == [10, 11, 12, 13, 1]


def test_every_order_is_equally_likely():
    made = shuffled(12_000, 4)
    orders, counts = np.unique(made.inputs.tokens[:, :4], axis=0, return_counts=True)
    assert len(orders) == 24 and (np.abs(counts - 500) < 110).all()  # 110: five standard deviations


def test_a_text_of_one_token_is_read_as_it_is():
    made = shuffled(1, 1)
    assert sequence(made.inputs) == sequence(made.targets) == [10, 1]
