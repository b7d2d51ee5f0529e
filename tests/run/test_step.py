"""The arithmetic of the step: one division for any number of microbatches; by hand for known logits."""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learners.learner import LossConfig
from objectives.losses.cross_entropy import target_side
from run.step import TrainState, init_state, make_eval_step, make_train_step, useful_token_fraction
from tests.table import random_windows, small_experiment

PLAIN = LossConfig(z_loss=0.0, label_smoothing=0.0, chunk_size=0)


def batch_of(experiment, rows):
    return jax.tree.map(jnp.asarray, experiment.collate(random_windows(experiment, rows, same_keys=False), rows))


def step_of(experiment, optimizer, accumulation=1, loss=PLAIN, **options):
    setup = dataclasses.replace(experiment.learner.setup, loss=loss)
    learner = dataclasses.replace(experiment.learner, setup=setup)
    return jax.jit(make_train_step(learner, optimizer, grad_accum_steps=accumulation, seed=0, **options))


@pytest.fixture(scope="module")
def ul2():
    return small_experiment("ul2", "encoder_decoder")


def test_accumulation_with_unequal_weights_is_the_large_batch(ul2):
    """Rows of seven denoisers score from 7 to 31 tokens, and one row scores a tenth of its weight."""
    optimizer = optax.sgd(1.0)
    batch = batch_of(ul2, 8)
    weights = batch["decoder_loss_weights"].at[0].multiply(0.1).at[5].set(0.0)
    batch |= {"decoder_loss_weights": weights}
    per_row = np.asarray(weights.sum(axis=1))
    assert len(set(per_row.tolist())) > 4
    state = init_state(ul2.learner, optimizer, seed=0, ema_decay=0.4)
    loss = LossConfig(z_loss=1e-3, label_smoothing=0.1, chunk_size=0)
    whole, metrics = step_of(ul2, optimizer, 1, loss, ema_decay=0.4)(state, batch)
    chunked = dataclasses.replace(loss, chunk_size=9)
    parts, part_metrics = step_of(ul2, optimizer, 8, chunked, ema_decay=0.4)(state, batch)
    for tree in ("params", "ema_params"):
        found, expected, before = (getattr(each, tree) for each in (parts, whole, state))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), found, expected)
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), expected, before)
        assert max(jax.tree.leaves(moved)) > 1e-3
    for name in metrics:
        np.testing.assert_allclose(part_metrics[name], metrics[name], rtol=1e-4, err_msg=name)


def test_a_stub_model_with_constant_logits(ul2, monkeypatch):
    """Two kinds of token: target 5 has logit 2, all V - 1 others 0. NLL(5) = ln(e^2 + V - 1) - 2, else + 2."""
    size = ul2.model.vocab_size

    def constant(model, params):
        return types.SimpleNamespace(
            hidden=lambda batch, dropout_key: batch[f"{target_side(batch)}_target_tokens"][..., None],
            logits=lambda hidden: jnp.zeros((*hidden.shape[:-1], size)).at[..., 5].set(2.0) + 0 * params["w"],
        )

    monkeypatch.setattr("learners.learner.bind", constant)
    batch = batch_of(ul2, 8)
    targets, weights = (np.asarray(batch[f"decoder_{name}"]) for name in ("target_tokens", "loss_weights"))
    targets = np.where(np.arange(targets.shape[1]) % 3 == 0, 5, np.where(targets == 5, 6, targets))
    batch |= {"decoder_target_tokens": jnp.asarray(targets)}
    fives = (weights * (targets == 5)).sum()
    expected = math.log(math.exp(2) + size - 1) - 2 * fives / weights.sum()
    zero = jnp.zeros((), jnp.int32)
    params = {"transformer": {"w": jnp.zeros(())}}
    state = TrainState(zero, params, optax.sgd(1.0).init(params), zero, zero)
    for accumulation in (1, 4):
        _, metrics = step_of(ul2, optax.sgd(1.0), accumulation)(state, batch)
        assert float(metrics["loss_sum"] / metrics["weight_sum"]) == pytest.approx(expected, rel=1e-5)
        assert float(metrics["correct_sum"]) == fives
    sums = make_eval_step(ul2.learner, bytes_of_token=jnp.ones(size, jnp.int32), unk=5)(state.params, batch)
    assert float(sums["loss_sum"] / sums["weight_sum"]) == pytest.approx(expected, rel=1e-5)
    assert tuple(map(float, sums["ratios"]["unknown_fraction"])) == (fives, weights.sum())
    # Positions without text count none: of a process without rows all ids are 0, which is some token of the vocabulary.
    is_text = np.asarray(batch["decoder_segment_ids"]) > 0
    assert int(sums["bytes_sum_by_group"].sum()) == is_text.sum() < is_text.size


def test_updates_that_are_not_finite_are_skipped_and_counted(ul2):
    optimizer = optax.adam(1e-2)
    step, batch = step_of(ul2, optimizer), batch_of(ul2, 8)
    bad = batch | {"decoder_loss_weights": batch["decoder_loss_weights"].at[0, 0].set(jnp.nan)}
    state = init_state(ul2.learner, optimizer, seed=0)
    for _ in range(2):
        after, metrics = step(state, bad)
        jax.tree.map(np.testing.assert_array_equal, (after.params, after.opt_state), (state.params, state.opt_state))
        state = after
    assert (int(metrics["skipped_count"]), int(metrics["skipped_in_a_row_count"])) == (2, 2)
    state, metrics = step(state, batch)
    assert (int(metrics["skipped_count"]), int(metrics["skipped_in_a_row_count"])) == (2, 0)
    assert int(state.step) == 3 and int(state.opt_state[0].count) == 1


def test_dropout_differs_between_steps_microbatches_and_seeds():
    """Rows a a b b are the microbatches a b and a b, of which one has scored tokens."""
    experiment = small_experiment("clm", "decoder_only", model__dropout_rate=0.3)
    optimizer = optax.sgd(0.0)
    batch = {name: jnp.repeat(array, 2, axis=0) for name, array in batch_of(experiment, 2).items()}
    state = init_state(experiment.learner, optimizer, seed=0)

    @jax.jit
    def step(state, batch, seed):
        return make_train_step(experiment.learner, optimizer, grad_accum_steps=2, seed=seed)(state, batch)

    def loss_of(microbatch, state):
        weights = batch["decoder_loss_weights"].at[1 - microbatch :: 2].set(0)
        state, metrics = step(state, batch | {"decoder_loss_weights": weights}, 0)
        return state, float(metrics["loss_sum"])

    (after, first), (_, second) = loss_of(0, state), loss_of(1, state)
    assert first == loss_of(0, state)[1] != loss_of(0, after)[1]
    losses = [float(step(state, batch, seed)[1]["loss_sum"]) for seed in (0, 1)]
    assert losses[0] != losses[1]
    assert first != pytest.approx(second, rel=1e-6)


def test_useful_token_fraction_counts_both_stacks():
    batch = {"encoder_segment_ids": jnp.asarray([[1, 1, 1, 0]]), "decoder_segment_ids": jnp.asarray([[1, 0]])}
    assert float(useful_token_fraction(batch)) == pytest.approx(4 / 6)
