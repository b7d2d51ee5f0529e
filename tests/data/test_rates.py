"""Rates of corpora: T5's examples-proportional mixing with a limit, and its temperature."""

import pytest

from contract.errors import ConfigError
from data.windows.rates import rate_factors, rates


def found(counts, weights=(1.0, 1.0, 1.0), **fields):
    fields = {"maximum": 0, "temperature": 1.0} | fields
    return list(rates(weights, rate_factors("num_examples", counts, **fields), "abc").values())


def test_rates_by_weight_do_not_depend_on_the_corpora():
    factors = rate_factors("weight", (10**9, 1, 7), maximum=5, temperature=3.0)
    assert rates((3.0, 1.0, 1.0), factors, "abc") == {"a": 0.6, "b": 0.2, "c": 0.2}


def test_rates_of_the_paper():
    """Raffel et al. 2020, section 3.5.2: min(e_m, K) / sum of min(e_n, K), to the power of 1 / T, normalised."""
    assert found((600, 300, 100)) == pytest.approx([0.6, 0.3, 0.1])
    assert found((600, 300, 100), maximum=300) == pytest.approx([3 / 7, 3 / 7, 1 / 7])
    assert found((1600, 400, 100), temperature=2.0) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert found((9600, 400, 100), maximum=1600, temperature=2.0) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert found((10**12, 1, 10**6), temperature=1e9) == pytest.approx([1 / 3] * 3), "T -> infinity: equal mixing"
    assert found((600, 300, 100), weights=(1.0, 2.0, 6.0)) == pytest.approx([1 / 3] * 3)


def test_small_temperatures_neither_overflow_nor_lose_a_corpus_silently():
    assert found((10**12, 10**12, 10**12), temperature=0.01) == pytest.approx([1 / 3] * 3)
    with pytest.raises(ConfigError, match=r"^corpus 'b' has a rate of 0, .*: raise data.sources.b.weight"):
        found((10**12, 1, 10**12), temperature=0.01)
