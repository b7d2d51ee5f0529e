"""Documents by number, their orders in the epochs, and the rates of several corpora (T5's mixing)."""

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.rng import GOLDEN, mix64, seed_bits
from data.windows.documents import Documents, rate_factors, rates
from data.windows.windowing import _epoch_order
from tests.data.corpus import store_of


def test_documents_by_hand(tmp_path):
    store = store_of(tmp_path, ["a", "bc", "def"])
    for index in ([2, 0], [1]):
        documents, lengths = Documents(store, np.array(index), "training"), []
        assert len(documents) == len(index)
        for i, d in enumerate(index):
            assert documents.tokens(i).tolist() == [ord(c) + 3 for c in ["a", "bc", "def"][d]]
            assert documents.name(i).endswith(f"00{d}.txt")
            lengths.append(d + 1)
        assert documents.ends(False).tolist() == np.cumsum(lengths).tolist()
        assert documents.ends(True).tolist() == np.cumsum(np.array(lengths) + 1).tolist()


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (-3, 2), (2**70, 0)])
def test_an_order_is_the_sort_of_the_documents_by_their_hashes(tmp_path, seed, epoch):
    store = store_of(tmp_path, ["a" * (k % 7 + 1) for k in range(40)])
    documents = Documents(store, np.arange(40), "training")
    order, ends = _epoch_order(documents, False, seed, epoch)
    keys = mix64(np.uint64(seed_bits(seed, f"documents {epoch}")) + GOLDEN * np.arange(40, dtype=np.uint64))
    assert order.tolist() == np.argsort(keys).tolist()
    assert ends.tolist() == np.cumsum(np.diff(documents.ends(False), prepend=0)[np.argsort(keys)]).tolist()


def rates_of(counts, weights=(1.0, 1.0, 1.0), **fields):
    fields = {"maximum": 0, "temperature": 1.0} | fields
    return list(rates(weights, rate_factors("num_examples", counts, **fields), "abc").values())


def test_rates_of_the_paper():
    """Raffel et al. 2020, section 3.5.2: min(e_m, K) / sum of min(e_n, K), to the power of 1 / T, normalised."""
    assert rates_of((600, 300, 100)) == pytest.approx([0.6, 0.3, 0.1])
    assert rates_of((600, 300, 100), maximum=300) == pytest.approx([3 / 7, 3 / 7, 1 / 7])
    assert rates_of((1600, 400, 100), temperature=2.0) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert rates_of((9600, 400, 100), maximum=1600, temperature=2.0) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert rates_of((10**12, 1, 10**6), temperature=1e9) == pytest.approx([1 / 3] * 3), "T -> infinity: equal mixing"
    assert rates_of((600, 300, 100), weights=(1.0, 2.0, 6.0)) == pytest.approx([1 / 3] * 3)


def test_small_temperatures_neither_overflow_nor_lose_a_corpus_silently():
    assert rates_of((10**12, 10**12, 10**12), temperature=0.01) == pytest.approx([1 / 3] * 3)
    with pytest.raises(ConfigError, match=r"^corpus 'b' has a rate of 0, .*: raise data.sources.b.weight"):
        rates_of((10**12, 1, 10**12), temperature=0.01)
