"""The fit: known coefficients, an independent optimizer, the coverage of intervals, and points that do not suffice."""

import math

import numpy as np
import pytest
from scipy.optimize import least_squares

from contract.errors import ConfigError
from studies.scaling.fit import fit, interval
from studies.scaling.law import PUBLISHED, Law
from studies.scaling.report import fit_fields, fit_table, warnings_of
from studies.scaling.runs import Point

LAW = Law(E=1.2, A=40.0, B=300.0, alpha=0.35, beta=0.4)
NAMES = ("E", "A", "B", "alpha", "beta")
SIZES, TOKENS = np.geomspace(5e4, 2.5e6, 5), 5e5 * 2.0 ** np.arange(4)


def study(law=LAW, noise=0.0, seed=0, *, sizes=SIZES, tokens=TOKENS, seeds=1):
    """Runs of each size at each number of tokens, with losses of `law` times exp(noise x a normal number)."""
    rng = np.random.default_rng(seed)
    return [
        point(size, count, float(law.loss(size, count)) * math.exp(noise * rng.standard_normal()), seed=k)
        for size in sizes
        for count in tokens
        for k in range(seeds)
    ]


def point(params, tokens, loss, seed=0):
    name = f"{params:.0f} {tokens:.0f}"
    return Point(f"{name}-seed{seed}", name, float(params), float(tokens), loss, 6.0 * params * tokens)


@pytest.mark.parametrize("law", [LAW, *PUBLISHED.values()], ids=["small", *PUBLISHED])
def test_losses_without_noise_give_the_coefficients(law):
    scale = 1 if law is LAW else 1e4
    found = fit(study(law, sizes=SIZES * scale, tokens=TOKENS * scale), num_resamples=1).law
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=0.01), name


def test_the_estimate_is_the_minimum_that_least_squares_with_the_huber_loss_finds():
    """scipy's trust-region solver, from another start and in other units: log A, log B, log E, alpha and beta."""
    points = study(noise=0.002, seed=3)
    sizes, tokens, losses = (np.array([getattr(p, name) for p in points]) for name in ("params", "tokens", "loss"))

    def residuals(theta):
        law = Law(E=np.exp(theta[0]), A=np.exp(theta[1]), B=np.exp(theta[2]), alpha=theta[3], beta=theta[4])
        return np.log(law.loss(sizes, tokens)) - np.log(losses)

    theta = np.array([0.0, 3.0, 5.0, 0.4, 0.4])
    for delta in (1.0, 0.1, 0.01, 1e-3):  # from nearly least squares to the loss of the fit
        theta = least_squares(residuals, theta, loss="huber", f_scale=delta, x_scale="jac", max_nfev=3000).x
    found = fit(points, num_resamples=1).law
    ours = np.array([*np.log([found.E, found.A, found.B]), found.alpha, found.beta])

    def huber(theta):
        size = np.abs(residuals(theta))
        return np.where(size < 1e-3, size**2 / 2, 1e-3 * (size - 1e-3 / 2)).sum()

    assert huber(ours) <= huber(theta) * (1 + 1e-4)
    np.testing.assert_allclose(ours[[0, 3, 4]], theta[[0, 3, 4]], atol=0.01)


def test_intervals_contain_the_coefficients():
    """20 studies of 20 runs: with a coverage of 95% fewer than 15 hits have a probability of 0.03%."""
    true = {name: getattr(LAW, name) for name in NAMES}
    true |= {name: getattr(LAW.optimum(1e13), name) for name in ("params", "tokens", "tokens_per_param", "loss")}
    hits = dict.fromkeys(true, 0)
    for seed in range(20):
        points = study(noise=0.003, seed=seed)
        fields = fit_fields(points, fit(points, num_resamples=60), 1e13)
        for name, value in true.items():
            quantity = (fields if name in NAMES else fields["optimum"])[name]
            assert quantity["low"] <= quantity["value"] <= quantity["high"] and quantity["determined"], name
            hits[name] += quantity["low"] <= value <= quantity["high"]
    assert min(hits.values()) >= 15, hits


def test_draws_keep_the_seeds_of_a_configuration_together():
    """Three equal runs of each configuration hold no more than one of them: the intervals have the same width."""
    once = study(noise=0.01, seed=1)
    threefold = [p._replace(run=f"{p.run}{k}") for p in once for k in range(3)]

    def width(points):
        low, high = interval([law.alpha for law in fit(points, num_resamples=60).resampled])
        return high - low

    assert width(threefold) == pytest.approx(width(once), rel=0.05)


def test_a_coefficient_that_the_runs_do_not_determine_is_named():
    noisy = study(noise=0.1, seed=0, tokens=TOKENS[:3])
    fields = fit_fields(noisy, fit(noisy, num_resamples=60), None)
    unknown = [name for name in NAMES if not fields[name]["determined"]]
    assert {"E", "B"} <= set(unknown)
    warnings = list(warnings_of(fields))
    assert warnings[0].startswith("the runs do not determine ") and "E" in warnings[0]
    assert any("the runs do not determine the optimum" in text for text in warnings)
    cells = [cell for column in fit_table(fields).columns for cell in column.cells]
    assert cells.count("not determined") >= len(unknown)


def test_a_loss_that_does_not_depend_on_the_size_has_no_optimum():
    flat = study(Law(E=1.2, A=0.0, B=300.0, alpha=0.3, beta=0.4), noise=0.003)
    fields = fit_fields(flat, fit(flat, num_resamples=60), 1e13)
    assert not fields["optimum"]["tokens_per_param"]["determined"]
    assert fields["beta"]["low"] <= 0.4 <= fields["beta"]["high"]


def test_extrapolation_is_warned_about():
    points = study()
    result = fit(points, num_resamples=20)
    assert list(warnings_of(fit_fields(points, result, 1e12))) == []
    beyond = list(warnings_of(fit_fields(points, result, 6e15)))
    assert beyond[0].startswith("extrapolation: 6e+15 FLOPs are 100 times those of the largest run (6e+13)")
    assert beyond[1].startswith("the optimum is outside the sizes and tokens of the runs: ")


def test_interval_of_values_that_are_unknown_is_unbounded():
    assert interval(np.arange(1000.0)) == (24.0, 975.0)
    assert interval([*np.arange(100.0), *[math.nan] * 10]) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            study(sizes=SIZES[:2]),
            r"the runs have 2 different sizes \(5e\+04, 1.33e\+05\), and the fit needs 3 or more: add",
        ),
        (
            study(tokens=[5e5, 5.01e5, 1e6]),
            r"the runs have 2 different numbers of tokens \(5e\+05, 1e\+06\), and the fit needs 3 or more: run",
        ),
        (
            [point(n, d, 3.0 - n * d / 1e13) for n, d in [(1e5, 1e6), (1e5, 2e6), (1e5, 4e6), (2e5, 1e6), (4e5, 1e6)]],
            r"the runs have 5 different pairs of size and tokens, and a fit of five coefficients needs 6 or more",
        ),
        (
            [point(n, 20 * n, float(LAW.loss(n, 20 * n))) for n in np.geomspace(1e5, 1e7, 8)],
            r"have a correlation of 1.0000, so the effects of size and of tokens cannot be separated",
        ),
    ],
)
def test_points_that_do_not_suffice_are_one_line(points, message):
    with pytest.raises(ConfigError, match=message) as error:
        fit(points)
    assert "\n" not in str(error.value)
