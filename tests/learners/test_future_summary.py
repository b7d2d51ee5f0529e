"""The learner of a future summary: both losses position by position, their denominators and weights, and CLM within."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from learners.learner import TokenPredictionLearner
from models.transformer import bind
from tests.learners.row_learners import gradients_of, loss_of, params_of
from tests.table import random_windows, small_experiment

KEY = jax.random.key(0)


@functools.cache
def experiment(summary):
    """Documents packed in rows of 40; the bag has the tokens 2, 3 and 4 ahead."""
    fields = {"objective__horizon": 4, "objective__loss_weight": 0.3}
    return small_experiment(f"future_summary:{summary}", "decoder_only", **fields)


@functools.cache
def batch():
    """Four rows, some of two documents, one of which has a single token; one token in five is not scored."""
    windows = random_windows(experiment("order"), 6, same_keys=False)
    lengths, rows = np.asarray([2, 30, 17, 1, 40, 9]), np.asarray([0, 0, 1, 1, 2, 3])
    batch = experiment("order").collate(windows._replace(lengths=lengths, row_ids=rows), 4)
    scored = np.random.default_rng(1).random(batch["decoder_loss_weights"].shape) < 0.8
    return {**batch, "decoder_loss_weights": batch["decoder_loss_weights"] * scored.astype(np.float32)}


def by_hand(summary, params):
    """(sum, weight) of the head's loss, in float64."""
    states = np.asarray(bind(experiment(summary).model, params["transformer"]).hidden(batch()), np.float64)
    table = np.asarray(params["summary_head"]["logits_dense"]["kernel"], np.float64)
    targets, segments, scored = (
        batch()[f"decoder_{name}"] for name in ("target_tokens", "segment_ids", "loss_weights")
    )
    total = np.zeros(2)
    for row, t in np.argwhere(segments > 0):
        ahead = targets[row, t:][segments[row, t:] == segments[row, t]]  # the next token first
        logits = states[row, t] @ table
        if summary == "order":
            scores = np.full(len(logits), -np.inf)
            for distance in range(len(ahead))[::-1]:
                scores[ahead[distance]] = -distance
            loss = -(np.exp(log_softmax(scores)) * log_softmax(logits)).sum()
        else:
            ahead = ahead[1:4]
            loss = np.logaddexp(0, np.where(np.isin(np.arange(len(logits)), ahead), -logits, logits)).mean()
        total += (scored[row, t] * loss, scored[row, t]) if len(ahead) else (0, 0)
    return total


@pytest.mark.parametrize("summary", ["order", "bag"])
def test_the_loss_is_that_of_the_next_token_and_the_weighted_mean_of_the_summary(summary):
    learner = experiment(summary).learner
    params = params_of(learner)
    (loss, sums), _ = gradients_of(learner)(params, batch(), learner.weights(batch()), KEY)
    clm = TokenPredictionLearner(learner.objective, learner.model, learner.setup)
    alone = {"transformer": params["transformer"]}
    clm_loss, clm_sums = loss_of(clm)(alone, batch(), clm.weights(batch()), KEY)
    total, weight = by_hand(summary, params)
    assert sums["ratios"].keys() == {f"{summary}_loss"}
    assert tuple(map(float, sums["ratios"][f"{summary}_loss"])) == pytest.approx((total, weight), rel=1e-5)
    assert (weight < float(clm_sums["weight_sum"])) == (summary == "bag")  # the last token has no future there
    assert float(loss) == pytest.approx(float(clm_loss) + 0.3 * total / weight, rel=1e-5)
    assert float(sums["loss_sum"]) == pytest.approx(float(clm_sums["loss_sum"]), rel=1e-6)


@pytest.mark.parametrize("summary", ["order", "bag"])
def test_chunks_and_microbatches_change_nothing(summary):
    learner = experiment(summary).learner
    params, weights = params_of(learner), learner.weights(batch())
    chunked = dataclasses.replace(learner.setup, loss=dataclasses.replace(learner.setup.loss, chunk_size=7))
    whole = gradients_of(learner)(params, batch(), weights, KEY)
    parts = [jax.tree.map(lambda x, rows=rows: x[rows], batch()) for rows in (slice(0, None, 2), slice(1, None, 2))]
    of_parts = [gradients_of(dataclasses.replace(learner, setup=chunked))(params, part, weights, KEY) for part in parts]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, jax.tree.map(np.add, *of_parts), whole)
