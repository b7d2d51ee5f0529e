"""BERT's two losses: each over its own denominator, the effect of pair_weight, and that pair labels are learned."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.parameters import array_types
from run.metrics import summarize
from tests.learners.row_learners import batch_of, class_logits, gradients_of, nll, params_of
from tests.table import small_experiment

KEY = jax.random.key(0)


@functools.cache
def experiment_of(name="nsp", **overrides):
    return small_experiment(name, "encoder_only", **overrides)


@pytest.fixture(scope="module")
def batch():
    return batch_of(experiment_of())


@pytest.fixture(scope="module")
def params():
    return params_of(experiment_of().learner)


def gradients(learner, params, batch, weights=None):
    return gradients_of(learner)(params, batch, weights or learner.weights(batch), KEY)


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def test_the_sum_of_both_losses_each_over_its_own_denominator(params, batch):
    learner, labels = experiment_of().learner, np.asarray(batch["sentence_labels"])
    (loss, sums), grads = gradients(learner, params, batch)
    logits = class_logits(learner.model, params["transformer"], params["pair_classifier"], batch, np.zeros(8, int))
    summary = summarize(sums, ["nsp"])
    assert set(labels.tolist()) == {-1, 0, 1}
    logits, labels = logits[labels >= 0], labels[labels >= 0]  # rows without a pair are not scored
    assert summary["pair_loss"] == pytest.approx(nll(logits, labels).mean(), rel=1e-4)
    assert summary["pair_accuracy"] == (logits.argmax(axis=1) == labels).mean()
    assert float(loss) == pytest.approx(summary["loss"] + summary["pair_loss"], rel=1e-5)
    assert float(sums["weight_sum"]) == float(batch["encoder_loss_weights"].sum())
    assert largest(grads["pair_classifier"]) > 1e-3


def test_a_weight_of_0_removes_the_pair_loss_only(params, batch):
    with_pairs, mlm_only = experiment_of().learner, experiment_of("nsp:mlm_only").learner
    (loss, sums), grads = gradients(mlm_only, params, batch)
    (_, sums_with_pairs), _ = gradients(with_pairs, params, batch)
    jax.tree.map(np.testing.assert_array_equal, sums, sums_with_pairs)
    assert largest(grads["pair_classifier"]) == 0
    assert float(loss) == pytest.approx(float(sums["loss_sum"] / sums["weight_sum"]), rel=1e-6)
    assert largest(grads["transformer"]) > 1e-3


def test_microbatches_add_up_to_the_batch(params, batch):
    """The halves score different numbers of tokens."""
    learner = experiment_of().learner
    halves = [jax.tree.map(lambda x, half=half: x[half::2], batch) for half in range(2)]
    tokens = [float(half["encoder_loss_weights"].sum()) for half in halves]
    assert tokens[0] != tokens[1]
    (loss, sums), grads = gradients(learner, params, batch)
    parts = [gradients(learner, params, half, learner.weights(batch)) for half in halves]
    added = jax.tree.map(jnp.add, *parts)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), added, ((loss, sums), grads))


def test_fine_tuning_may_start_from_it():
    """Same tokens, lengths and model, the sentence types included: the same Transformer."""
    fine = small_experiment("classification", "encoder_only", model__num_token_types=2)
    transformers = [
        jax.eval_shape(lambda learner=learner: learner.transformer(learner.init_params(KEY)))
        for learner in (experiment_of("sop").learner, fine.learner)
    ]
    assert "token_type_embedder/embedding" in array_types(transformers[0])
    assert array_types(transformers[0]) == array_types(transformers[1])
