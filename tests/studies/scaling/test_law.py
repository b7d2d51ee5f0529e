"""The law and its optimum, by hand and against a numerical minimum; published coefficients at Chinchilla's budget."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from studies.scaling.advice import advice_fields, advice_warnings, nearest_preset
from studies.scaling.law import PUBLISHED, Law
from studies.scaling.report import short

GOPHER_FLOPS = 5.76e23


def test_loss_by_hand():
    law = Law(E=1.0, A=8.0, B=30.0, alpha=0.5, beta=1.0)
    assert law.loss(16.0, 60.0) == pytest.approx(1.0 + 8 / 4 + 30 / 60)
    np.testing.assert_allclose(law.loss([16.0, 64.0], [60.0, 15.0]), [3.5, 4.0])


def test_optimum_by_hand():
    """alpha = beta and A = B: N and D are equal, so 6 N^2 = 600. A = 4 B and alpha = beta = 1/2: N / D = 4."""
    equal = Law(E=1.0, A=2.0, B=2.0, alpha=0.3, beta=0.3).optimum(600.0)
    assert (equal.params, equal.tokens) == (pytest.approx(10.0), pytest.approx(10.0))
    assert equal.tokens_per_param == pytest.approx(1.0)
    unequal = Law(E=1.0, A=4.0, B=1.0, alpha=0.5, beta=0.5).optimum(600.0)
    assert (unequal.params, unequal.tokens) == (pytest.approx(40.0), pytest.approx(2.5))
    assert unequal.loss == pytest.approx(1 + 4 / 40**0.5 + 1 / 2.5**0.5)


@pytest.mark.parametrize("law", PUBLISHED.values(), ids=PUBLISHED)
@pytest.mark.parametrize("flops", [1e15, 1e21, 1e26])
def test_optimum_is_the_numerical_minimum(law, flops):
    found = minimize_scalar(
        lambda x: float(law.loss(np.exp(x), flops / 6 / np.exp(x))), bounds=(0, np.log(flops)), options={"xatol": 1e-9}
    )
    optimum = law.optimum(flops)
    assert optimum.params == pytest.approx(np.exp(found.x), rel=1e-3)
    assert optimum.loss == pytest.approx(found.fun, rel=1e-12)
    assert 6 * optimum.params * optimum.tokens == pytest.approx(flops)


@pytest.mark.parametrize("field", ["A", "B", "alpha", "beta"])
def test_a_loss_that_does_not_depend_on_size_or_tokens_has_no_optimum(field):
    fields = {"E": 1.0, "A": 2.0, "B": 2.0, "alpha": 0.3, "beta": 0.3} | {field: 0.0}
    assert Law(**fields).optimum(1e12) is None


def test_published_coefficients_at_the_budget_of_chinchilla():
    """Chinchilla has 70B parameters and 1.4T tokens; its paper's approach 3 projects 40B parameters (figure 4)."""
    advice = advice_fields(GOPHER_FLOPS)
    assert advice["Hoffmann et al. (2022), not rounded"]["params"] == pytest.approx(40e9, rel=0.02)
    # The rounded exponents move the optimum to a smaller model.
    assert advice["Hoffmann et al. (2022), as printed"]["params"] == pytest.approx(32.2e9, rel=0.01)
    again = advice["Besiroglu et al. (2024)"]
    assert (again["params"], again["tokens"]) == (pytest.approx(70e9, rel=0.06), pytest.approx(1.4e12, rel=0.06))
    assert again["nearest_preset"] == "configs/clm.py:70b"
    ratio = advice["20 tokens per parameter"]
    assert (ratio["params"], ratio["tokens"]) == (pytest.approx(69.3e9, rel=1e-3), pytest.approx(1.386e12, rel=1e-3))


def test_nearest_preset_is_within_a_factor_of_two():
    assert nearest_preset(1.2e8) == "configs/clm.py:small"
    assert nearest_preset(8e9) == "configs/clm.py:7b"
    assert nearest_preset(30e9) == nearest_preset(1e6) == ""  # 13b and 70b differ by a factor of 5


def test_advice_outside_the_published_runs_is_called_an_extrapolation():
    assert advice_warnings(1e21) == []
    assert advice_warnings(GOPHER_FLOPS)[0].startswith("extrapolation: the published coefficients")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.3478, "0.3478"), (2085.43, "2085"), (45216, "45.2k"), (2.78e9, "2.78B"), (1.4e12, "1.4T"), (3e16, "3e+16")],
)
def test_numbers_are_short(value, text):
    assert short(value) == text
