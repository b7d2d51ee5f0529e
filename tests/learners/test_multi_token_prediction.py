"""The learner: each future token's loss against NumPy, which inputs it depends on, memory, and the model within."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contract.errors import ConfigError
from learners.learner import TokenPredictionLearner
from models.transformer import bind
from tests.table import changed_token, random_windows, small_experiment

KINDS = ["independent", "sequential"]
NUM_FUTURE_TOKENS = 3


@functools.cache
def experiment_of(kind):
    """Documents packed in rows of 40, two layers, three tokens ahead."""
    return small_experiment(
        f"multi_token_prediction:{kind}", "decoder_only", objective__num_future_tokens=NUM_FUTURE_TOKENS
    )


@functools.cache
def params_of(kind):
    """Heads and output table far from their small initial values, so that losses differ from head to head."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(experiment_of(kind).learner.init_params, jax.random.key(0))

    def draw(shape):
        noise = rng.normal(size=shape.shape).astype(np.float32)
        return 1 + 0.1 * noise if len(shape.shape) == 1 or shape.shape[0] < 4 == len(shape.shape) else 0.2 * noise

    return jax.tree.map(draw, shapes)


@functools.cache
def packed_batch(kind):
    """40 rows, most of two documents, some of which have only two tokens; one token in ten is not scored."""
    experiment = experiment_of(kind)
    windows = random_windows(experiment, 80, same_keys=False)
    lengths = np.asarray([2, 30, 17, 23, 9, 9, 40] * 10)
    rows = np.asarray([0, 0, 1, 1, 2, 2, 3] * 10) + 4 * np.repeat(np.arange(10), 7)
    windows = windows._replace(**{name: getattr(windows, name)[:70] for name in ("tokens", "keys", "denoiser_ids")})
    batch = experiment.collate(windows._replace(lengths=lengths, row_ids=rows), 40)
    unscored = np.random.default_rng(1).random(batch["decoder_loss_weights"].shape) < 0.1
    return {**batch, "decoder_loss_weights": np.where(unscored, 0, batch["decoder_loss_weights"]).astype(np.float32)}


@functools.partial(jax.jit, static_argnums=0)
def hidden_of(learner, params, batch):
    return learner.hidden(params, batch)


@functools.partial(jax.jit, static_argnums=0)
def gradients(learner, params, batch, weights):
    def loss_of(params):
        return learner.loss(params, batch, weights, key=jax.random.key(0), train=True)

    (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    return loss, sums, grads


def by_hand(batch, logits):
    """(sum of losses, correct predictions, weight) of each future token, position by position; logits [n, B, T, V]."""
    targets, weights, segments = (batch[f"decoder_{name}"] for name in ("target_tokens", "loss_weights", "segment_ids"))
    log_probabilities = np.asarray(jax.nn.log_softmax(logits), np.float64)
    totals = np.zeros((len(logits), 3))
    for i, (b, t) in ((i, place) for i in range(len(logits)) for place in np.ndindex(targets.shape)):
        if t + i < targets.shape[1] and segments[b, t + i] == segments[b, t]:
            target, weight = targets[b, t + i], weights[b, t + i]
            best = log_probabilities[i, b, t].argmax()
            totals[i] += weight * np.asarray([-log_probabilities[i, b, t, target], best == target, 1])
    return totals


@pytest.mark.parametrize("kind", KINDS)
def test_losses_by_hand_and_gradients_of_parts(kind):
    """In addition, every head gets a gradient, and halves of the batch add up to the whole."""
    learner, params, batch = experiment_of(kind).learner, params_of(kind), packed_batch(kind)
    weights = learner.weights(batch)
    logits = bind(learner.model, params["transformer"]).logits(hidden_of(learner, params, batch))
    totals = by_hand(batch, logits)
    assert len({round(weight) for weight in totals[:, 2]}) == NUM_FUTURE_TOKENS  # denominators differ
    np.testing.assert_allclose([float(weights[f"future_{i}"]) for i in (1, 2, 3)], totals[:, 2])

    minimized, sums, grads = gradients(learner, params, batch, weights)
    means = totals[:, 0] / totals[:, 2]
    expected = means[0] + {"independent": means[1] + means[2], "sequential": 0.3 * (means[1] + means[2]) / 2}[kind]
    assert float(minimized) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose([sums["loss_sum"], sums["correct_sum"], sums["weight_sum"]], totals[0], rtol=1e-5)
    for i in (2, 3):
        loss, accuracy = sums["ratios"][f"loss/future_{i}"], sums["ratios"][f"accuracy/future_{i}"]
        np.testing.assert_allclose([loss[0], accuracy[0], loss[1]], totals[i - 1], rtol=1e-5)
        assert accuracy[1] == loss[1]
    assert all((np.abs(leaf).reshape(len(leaf), -1).sum(1) > 0).all() for leaf in jax.tree.leaves(grads["heads"]))

    in_first_half = np.arange(40)[:, None] < 20
    halves = [
        batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * half}
        for half in (in_first_half, ~in_first_half)
    ]
    total = jax.tree.map(jnp.add, *[gradients(learner, params, half, weights) for half in halves])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), total, (minimized, sums, grads))


@pytest.mark.parametrize("kind", KINDS)
def test_no_prediction_of_a_token_sees_it(kind):
    """In row r raw token r is changed. A head's states that predict r or earlier tokens stay equal, bit for bit.

    The boundary is exact. An independent head's next state, which reads r, changes. Sequential head i reads the i - 1
    tokens after a position, and its state changes one position after the one that predicts r.
    """
    experiment, params = experiment_of(kind), params_of(kind)
    windows = random_windows(experiment, 40, same_keys=True)
    diagonal, tokens = np.arange(40), windows.tokens.copy()
    tokens[diagonal, diagonal] = changed_token(experiment.vocab, tokens[diagonal, diagonal])
    before, after = (
        np.asarray(hidden_of(experiment.learner, params, experiment.collate(each, 40)))
        for each in (windows, windows._replace(tokens=tokens))
    )
    changed = (before != after).any(-1)  # [n, changed token, position]
    r, t = np.indices((40, 40))
    for i in range(1, NUM_FUTURE_TOKENS + 1):
        reads_ahead = i - 1 if kind == "sequential" else 0
        expected = (t + reads_ahead >= r + 1) & (r < 39)  # the row's last token is in no input
        np.testing.assert_array_equal(changed[i - 1], expected, err_msg=f"future token {i}")
        assert not changed[i - 1][t + i - 1 <= r].any()  # position t predicts raw token t + i - 1


def test_logits_of_all_heads_take_the_memory_of_one():
    """XLA's temporary memory of loss and gradient for four tokens and for one, most of which is logits (21 MB)."""
    experiment = small_experiment("multi_token_prediction", "decoder_only")
    assert experiment.learner.objective.num_future_tokens == 4
    model = dataclasses.replace(experiment.model, vocab_size=16384)
    batch = jax.tree.map(jnp.asarray, experiment.collate(random_windows(experiment, 8, same_keys=False), 8))
    temporary = []
    for learner in (
        dataclasses.replace(experiment.learner, model=model),
        TokenPredictionLearner(experiment.learner.objective, model, experiment.learner.setup),
    ):
        params = jax.eval_shape(learner.init_params, jax.random.key(0))
        compiled = gradients.lower(learner, params, batch, jax.eval_shape(learner.weights, batch)).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    logits = 8 * 40 * 16384 * 4
    assert logits < temporary[1] < temporary[0] < temporary[1] + logits / 4


def test_more_future_tokens_than_a_row_holds_are_refused():
    with pytest.raises(
        ConfigError, match=r"objective.num_future_tokens=21 must be at most 20, the length of an example"
    ):
        small_experiment("multi_token_prediction", "decoder_only", objective__num_future_tokens=21,
                         data__examples_per_row=2, data__documents="split", data__targets_length=80)  # fmt: skip
