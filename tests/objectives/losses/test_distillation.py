"""Divergences from a teacher: by hand, against float64, and at their limits."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.losses.distillation import divergences

KINDS = ("forward", "reverse", "jensen_shannon")


@functools.partial(jax.jit, static_argnames=("kind", "top_k"))
def divergence_of(logits, teacher_logits, kind, temperature=1.0, top_k=0):
    """Of one position."""
    arrays = (jnp.asarray(x, jnp.float32)[None, None] for x in (logits, teacher_logits))
    return divergences(*arrays, divergence=kind, temperature=temperature, top_k=top_k)[0, 0]


def outcomes(logits, teacher_logits, temperature, top_k):
    """q and p of the outcomes, float64: the teacher's likeliest tokens, and the others as one."""
    order = np.argsort(-np.asarray(teacher_logits, np.float64), kind="stable")
    count = top_k or len(order)
    for x in (logits, teacher_logits):
        weights = np.exp((np.asarray(x, np.float64) - np.max(x)) / temperature)
        probabilities = (weights / weights.sum())[order]
        rest = [probabilities[count:].sum()] if top_k else []
        yield np.array([*probabilities[:count], *rest])


def expected(logits, teacher_logits, kind, temperature=1.0, top_k=0):
    q, p = outcomes(logits, teacher_logits, temperature, top_k)

    def kl(a, b):
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)

    m = (p + q) / 2
    return {"forward": kl(p, q), "reverse": kl(q, p), "jensen_shannon": (kl(p, m) + kl(q, m)) / 2}[kind]


def test_divergences_by_hand():
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2)."""
    teacher, student = np.log([2.0, 1.0, 1.0]), np.log([1.0, 1.0, 2.0])
    log2 = math.log(2)
    assert divergence_of(student, teacher, "forward") == pytest.approx(log2 / 4, rel=1e-6)
    assert divergence_of(student, teacher, "reverse") == pytest.approx(log2 / 4, rel=1e-6)
    # m = (3/8, 1/4, 3/8): each KL is log(4/3) / 2 + log(2/3) / 4.
    half = math.log(4 / 3) / 2 + math.log(2 / 3) / 4
    assert divergence_of(student, teacher, "jensen_shannon") == pytest.approx(half, rel=1e-5)
    # Temperature 1/2: p = (4, 1, 1) / 6, q = (1, 1, 4) / 6.
    assert divergence_of(student, teacher, "forward", 0.5) == pytest.approx(log2, rel=1e-6)
    # The teacher's first token, and the others as one: p = (1/2, 1/2), q = (1/4, 3/4).
    of_two = math.log(2) / 2 + math.log(2 / 3) / 2
    assert divergence_of(student, teacher, "forward", top_k=1) == pytest.approx(of_two, rel=1e-5)
    of_two = math.log(1 / 2) / 4 + 3 * math.log(3 / 2) / 4
    assert divergence_of(student, teacher, "reverse", top_k=1) == pytest.approx(of_two, rel=1e-5)


def test_the_first_of_equally_likely_tokens_are_the_top():
    """With top_k=2 the outcomes are tokens 0, 1 and {2, 3}: p = (1/4, 1/4, 1/2), q = (1/8, 1/8, 3/4)."""
    student = np.log([1.0, 1.0, 3.0, 3.0])
    by_hand = math.log(2) / 2 + math.log(2 / 3) / 2
    assert divergence_of(student, np.zeros(4), "forward", top_k=2) == pytest.approx(by_hand, rel=1e-5)


# Adding 0 makes -0.0, which jax.lax.top_k orders before 0.0, equal to it.
LOGITS = st.lists(st.floats(-20, 20, width=32).map(lambda x: x + 0.0), min_size=6, max_size=6)


@settings(max_examples=300, deadline=None)
@given(LOGITS, LOGITS, st.sampled_from(KINDS), st.floats(0.5, 9), st.sampled_from([0, 1, 3, 5]))
def test_divergences_are_those_of_float64(student, teacher, kind, temperature, top_k):
    logits = np.array([student, teacher])
    found = float(divergence_of(*logits, kind, temperature, top_k=top_k))
    assert found == pytest.approx(expected(*logits, kind, temperature, top_k), rel=2e-4, abs=2e-5)
    assert found > -1e-5 and (kind != "jensen_shannon" or found < math.log(2) + 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [0, 3])
def test_gradients_are_those_of_differences_in_float64(kind, top_k):
    teacher, student = np.random.default_rng(1).normal(size=(2, 7)) * 2
    found = jax.grad(divergence_of)(jnp.asarray(student, jnp.float32), teacher, kind, 2.0, top_k=top_k)
    step = 1e-5 * np.eye(7)
    differences = [
        (expected(student + by, teacher, kind, 2.0, top_k) - expected(student - by, teacher, kind, 2.0, top_k)) / 2e-5
        for by in step
    ]
    np.testing.assert_allclose(found, differences, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [0, 4])
def test_equal_logits_have_no_divergence_and_no_gradient(kind, top_k):
    """Logits of which most probabilities round to 0 in float32 too."""
    for scale in (1.0, 60.0):
        logits = jnp.asarray(np.random.default_rng(2).normal(size=50) * scale, jnp.float32)
        value, gradient = jax.value_and_grad(divergence_of)(logits, logits, kind, top_k=top_k)
        assert abs(float(value)) < 1e-6
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_tokens_give_finite_losses_and_gradients(kind):
    logits, teacher = jnp.array([0.0, 500.0, -500.0]), jnp.array([0.0, -500.0, 500.0])
    nats = {"forward": (1000, 1000), "reverse": (1000, 500), "jensen_shannon": (math.log(2),) * 2}[kind]
    for top_k in (0, 1):
        value, gradient = jax.value_and_grad(divergence_of)(logits, teacher, kind, top_k=top_k)
        assert math.isfinite(value) and np.isfinite(gradient).all()
        assert value == pytest.approx(nats[top_k], rel=1e-5)
