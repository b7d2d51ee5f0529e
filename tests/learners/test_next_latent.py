"""The learner of next latents: both losses by hand, what is constant in them, and CLM within."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from contract.errors import ConfigError
from learners.learner import TokenPredictionLearner
from models.transformer import bind
from tests.table import random_windows, small_experiment

HORIZON = 3


@functools.cache
def experiment():
    """Documents packed in rows of 40, states of three tokens ahead, an output table of its own."""
    return small_experiment(
        "next_latent",
        "decoder_only",
        objective__horizon=HORIZON,
        objective__latent_weight=2.0,
        objective__kl_weight=0.5,
        model__tie_embeddings=False,
    )


@functools.cache
def params():
    """Far from the small initial values, so that some errors of states are above 1."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(experiment().learner.init_params, jax.random.key(0))
    return jax.tree.map(lambda x: (0.2 * rng.normal(size=x.shape) + (x.ndim == 1)).astype(np.float32), shapes)


@functools.cache
def batch():
    """Six rows, some of two documents, one of which has a single token; one token in five is not scored."""
    windows = random_windows(experiment(), 9, same_keys=False)
    lengths, rows = np.asarray([2, 30, 17, 22, 9, 1, 40, 40, 3]), np.asarray([0, 0, 1, 1, 2, 2, 3, 4, 5])
    batch = experiment().collate(windows._replace(lengths=lengths, row_ids=rows), 6)
    scored = np.random.default_rng(1).random(batch["decoder_loss_weights"].shape) < 0.8
    return {**batch, "decoder_loss_weights": batch["decoder_loss_weights"] * scored.astype(np.float32)}


@functools.partial(jax.jit, static_argnums=0)
def gradients(learner, params, batch, weights=None):
    weights = learner.weights(batch) if weights is None else weights

    def loss_of(params):
        return learner.loss(params, batch, weights, key=jax.random.key(0), train=True)

    (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    return loss, sums, grads


def learner_of(*, chunk_size=0, **fields):
    learner = experiment().learner
    loss = dataclasses.replace(learner.setup.loss, chunk_size=chunk_size)
    return dataclasses.replace(
        learner,
        objective=dataclasses.replace(learner.objective, **fields),
        setup=dataclasses.replace(learner.setup, loss=loss),
    )


def clm_gradients():
    learner = experiment().learner
    clm = TokenPredictionLearner(learner.objective, learner.model, learner.setup)
    return gradients(clm, {"transformer": params()["transformer"]}, batch())


def gelu(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def by_hand():
    """(sum, weight) of both losses at each step, position by position in float64."""
    learner, transformer = experiment().learner, bind(experiment().model, params()["transformer"])
    own, mlp = transformer.hidden(batch()), params()["latent_dynamics"]
    embedded = transformer.embed(batch()["decoder_input_tokens"], batch()["decoder_positions"], stack="decoder")
    own, embedded = np.asarray(own, np.float64), np.asarray(embedded, np.float64)
    table = np.asarray(params()["transformer"]["logits_dense"]["kernel"], np.float64)
    segments, scored = batch()["decoder_segment_ids"], batch()["decoder_loss_weights"]
    totals = {"latent": np.zeros((HORIZON, 2)), "kl": np.zeros((HORIZON, 2))}
    for row, start in np.ndindex(segments.shape):
        state = own[row, start]
        for k in range(HORIZON):
            t = start + k + 1
            if t >= segments.shape[1] or segments[row, t] != segments[row, start] or segments[row, t] == 0:
                break
            x = np.concatenate([embedded[row, t], state])
            x = x / np.sqrt(np.mean(x**2) + learner.model.norm_epsilon) * mlp["norm"]["scale"]
            x = gelu(gelu(x @ mlp["dense_0"]["kernel"]) @ mlp["dense_1"]["kernel"])
            state = state + x @ mlp["dense_2"]["kernel"]
            error = np.abs(state - own[row, t])
            totals["latent"][k] += np.where(error < 1, error**2 / 2, error - 0.5).mean(), 1
            true, predicted = log_softmax(own[row, t] @ table), log_softmax(state @ table)
            totals["kl"][k] += scored[row, t] * np.asarray([(np.exp(true) * (true - predicted)).sum(), 1])
    return totals


def test_both_losses_by_hand():
    loss, sums, _ = gradients(experiment().learner, params(), batch())
    expected, by_name = float(clm_gradients()[0]), by_hand()
    for name, weight in (("latent", 2.0), ("kl", 0.5)):
        totals = by_name[name]
        assert len(set(totals[:, 1])) == HORIZON  # denominators differ
        np.testing.assert_allclose(np.stack(sums["ratios"][f"{name}_loss"], axis=1), totals, rtol=1e-4)
        expected += weight * (totals[:, 0] / totals[:, 1]).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_without_both_losses_it_is_clm():
    loss, sums, grads = gradients(learner_of(latent_weight=0.0, kl_weight=0.0), params(), batch())
    clm_loss, clm_sums, clm_grads = clm_gradients()
    jax.tree.map(np.testing.assert_array_equal, (loss, grads["transformer"]), (clm_loss, clm_grads["transformer"]))
    assert sums == {**clm_sums, "ratios": {}}
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads["latent_dynamics"]))


def test_the_output_table_is_a_constant():
    """The divergence adds nothing to the gradient of the output table, which it reads twice."""
    _, _, clm_grads = clm_gradients()
    for fields in ({"latent_weight": 0.0}, {"kl_weight": 0.0}):
        _, _, grads = gradients(learner_of(**fields), params(), batch())
        of_both = (each["transformer"]["logits_dense"]["kernel"] for each in (grads, clm_grads))
        np.testing.assert_allclose(*of_both, rtol=1e-5, atol=1e-9)
        assert all(leaf.any() for leaf in jax.tree.leaves(grads["latent_dynamics"]))


def test_a_state_that_is_only_a_target_has_no_gradient():
    """With a horizon of 1 and tokens that are not scored, the last state of a segment predicts nothing."""
    unscored = batch() | {"decoder_loss_weights": np.zeros_like(batch()["decoder_loss_weights"])}
    learner = learner_of(horizon=1, kl_weight=0.0)
    hidden = bind(learner.model, params()["transformer"]).hidden(unscored)

    def loss_of(hidden):
        return learner._auxiliary(params(), hidden, unscored)["latent"][0].sum()

    moved = (np.abs(jax.jit(jax.grad(loss_of))(hidden)) > 0).any(axis=-1)
    segments = unscored["decoder_segment_ids"]
    follows = np.pad((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0), ((0, 0), (0, 1)))
    np.testing.assert_array_equal(moved, follows)


def test_chunks_change_nothing():
    whole, chunks = (gradients(learner_of(chunk_size=size), params(), batch()) for size in (0, 7))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), whole, chunks)


def test_microbatches_add_up_to_the_batch():
    learner = experiment().learner
    weights = learner.weights(batch())
    parts = (jax.tree.map(lambda x, rows=rows: x[rows], batch()) for rows in (slice(0, None, 2), slice(1, None, 2)))
    total = jax.tree.map(np.add, *(gradients(learner, params(), part, weights) for part in parts))
    expected = gradients(learner, params(), batch())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), total, expected)


def test_a_horizon_beyond_the_row_is_refused():
    with pytest.raises(ConfigError, match=r"objective.horizon=20 must be below 20, the length of an example"):
        small_experiment("next_latent", "decoder_only", objective__horizon=20, data__examples_per_row=2,
                         data__documents="split", data__targets_length=80)  # fmt: skip
