"""Masked diffusion: its loss is the any-order bound, by enumeration over every mask of a short text."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from objectives import MaskedDiffusion
from tests.objectives.helpers import random_keys, vocab

VOCAB = vocab()
DIFFUSION = MaskedDiffusion(alignment="same")
N = 4  # tokens of a text over {0, 1, 2}
SUBSETS = [frozenset(subset) for k in range(1, N + 1) for subset in itertools.combinations(range(N), k)]


def random_nats(seed: int) -> dict[frozenset, np.ndarray]:
    """Hidden tokens -> the nats, float64 [N], that a model without any structure gives to each hidden token."""
    generator = np.random.default_rng(seed)
    return {subset: generator.exponential(1 + len(subset), N) for subset in SUBSETS}


def conditional_nats(joint: np.ndarray, text: tuple[int, ...]) -> dict[frozenset, np.ndarray]:
    """As `random_nats`, of the true conditional distributions of `joint`, float64 [3] * N."""
    nats = {}
    for hidden in SUBSETS:
        values = np.zeros(N)
        for i in hidden:
            visible = tuple(slice(None) if j in hidden else text[j] for j in range(N))
            own = tuple(text[j] if j == i or j not in hidden else slice(None) for j in range(N))
            values[i] = math.log(joint[visible].sum() / joint[own].sum())
        nats[hidden] = values
    return nats


def expected_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The expectation of the objective's loss of a text: k uniform, k tokens hidden, weights n / k."""
    of_counts = [
        np.mean([N / k * sum(nats[subset][i] for i in subset) for subset in SUBSETS if len(subset) == k])
        for k in range(1, N + 1)
    ]
    return float(np.mean(of_counts))


def any_order_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The mean over all orders of the nats of each token given the tokens before it in the order."""
    orders = [sum(nats[frozenset(order[i:])][order[i]] for i in range(N)) for order in itertools.permutations(range(N))]
    return float(np.mean(orders))


def integral_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The integral over t in (0, 1] of 1 / t times the expected nats of the tokens hidden with probability t."""

    def at(t):
        return sum(
            t ** (len(subset) - 1) * (1 - t) ** (N - len(subset)) * sum(nats[subset][i] for i in subset)
            for subset in SUBSETS
        )

    return integrate.quad(at, 0, 1, epsabs=1e-12)[0]


@pytest.mark.parametrize("seed", range(4))
def test_the_expected_loss_is_the_any_order_bound_and_the_integral_over_t(seed):
    nats = random_nats(seed)
    assert expected_loss(nats) == pytest.approx(any_order_loss(nats), abs=1e-9)
    assert expected_loss(nats) == pytest.approx(integral_loss(nats), abs=1e-9)


def test_a_mean_over_the_hidden_tokens_is_no_bound():
    """BERT's normalization, at the same masks: hidden tokens of all texts over their number. More hidden cost more."""
    nats = {subset: np.full(N, 1 + 2 * (len(subset) - 1) / (N - 1)) for subset in SUBSETS}
    hidden = [np.mean([sum(nats[s][i] for i in s) for s in SUBSETS if len(s) == k]) for k in range(1, N + 1)]
    by_number = N * np.sum(hidden) / np.sum(np.arange(1, N + 1))
    assert by_number / any_order_loss(nats) > 1.1


def test_with_true_conditionals_the_bound_is_the_likelihood():
    joint = np.random.default_rng(0).dirichlet(np.ones(3**N)).reshape([3] * N)
    for text in [(0, 1, 2, 0), (2, 2, 2, 2)]:
        assert expected_loss(conditional_nats(joint, text)) == pytest.approx(-math.log(joint[text]), abs=1e-9)


def test_a_wrong_model_lies_above_the_likelihood():
    joint, other = np.random.default_rng(1).dirichlet(np.ones(3**N), size=2).reshape(2, *[3] * N)
    texts = list(itertools.product(range(3), repeat=N))
    bound = sum(joint[text] * expected_loss(conditional_nats(other, text)) for text in texts)
    entropy = -sum(joint[text] * math.log(joint[text]) for text in texts)
    assert bound > entropy


@pytest.mark.parametrize("length", [1, 4, 7])
def test_every_set_of_tokens_is_hidden_with_the_probability_of_the_enumeration(length):
    """k is uniform, the set is uniform given k, and the weights of a text add up to its length. EOS may be hidden."""
    count = 20_000
    tokens = np.full((count, length + 3), VOCAB.content_start, np.int32)
    tokens[:, length - 1] = VOCAB.eos
    examples = DIFFUSION.corrupt(tokens, np.full(count, length), random_keys(count), VOCAB)
    selected = examples.selected[:, :length]
    assert not examples.selected[:, length:].any()
    k = selected.sum(axis=1)
    np.testing.assert_allclose(np.bincount(k, minlength=length + 1)[1:] / count, 1 / length, atol=0.015)
    np.testing.assert_allclose(examples.weights[:, :length], selected * (length / k)[:, None], rtol=1e-6)
    np.testing.assert_allclose(examples.weights.sum(axis=1), length, rtol=1e-5)
    np.testing.assert_array_equal(examples.inputs.tokens[:, :length] == VOCAB.mask, selected)
    if length == 4:
        for size in (1, 2, 3):
            of_size = selected[k == size]
            sets = of_size @ (1 << np.arange(length))
            shares = np.bincount(sets, minlength=16)[[sum(1 << i for i in s) for s in SUBSETS if len(s) == size]]
            np.testing.assert_allclose(shares / len(of_size), 1 / math.comb(4, size), atol=0.03)
