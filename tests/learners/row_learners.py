"""Shared by the tests of learners with row losses: batches, parameters, and a forward pass to compare with."""

import functools

import jax
import numpy as np

from models.parameters import leaf_name
from models.transformer import bind
from tests.table import random_windows


def batch_of(experiment, rows=8):
    windows = random_windows(experiment, rows, same_keys=False)
    # Rows of different lengths.
    lengths = np.random.default_rng(1).integers(3, windows.lengths + 1)
    windows = windows._replace(lengths=lengths, row_steps=np.full(rows, 3))
    return jax.tree.map(jax.numpy.asarray, experiment.collate(windows, rows))


def params_of(learner, seed=0):
    """Random values, different from the initial 0 and 1. The learner's own init_params takes seconds to compile."""
    generator, shapes = np.random.default_rng(seed), jax.eval_shape(learner.init_params, jax.random.key(0))

    def draw(path, leaf):
        return np.float32(leaf_name(path).endswith("scale") + 0.2 * generator.standard_normal(leaf.shape))

    return jax.tree_util.tree_map_with_path(draw, shapes)


def _loss(learner, train):
    def loss(params, batch, weights, key):
        return learner.loss(params, batch, weights, key=key, train=train)

    return loss


@functools.cache
def loss_of(learner, train=True):
    """(params, batch, weights, key) -> (loss, Sums), compiled."""
    return jax.jit(_loss(learner, train))


@functools.cache
def gradients_of(learner):
    """(params, batch, weights, key) -> ((loss, Sums), gradients), compiled."""
    return jax.jit(jax.value_and_grad(_loss(learner, train=True), has_aux=True))


@functools.cache
def _hidden_of(model):
    return jax.jit(lambda params, batch: bind(model, params).hidden(batch))


def class_logits(model, params, classifier, batch, positions):
    """The logits of a classifier, in NumPy, on a Transformer's states at `positions`, int [B], without dropout."""
    hidden = np.asarray(_hidden_of(model)(params, batch))[np.arange(len(positions)), positions]
    dense, classes = classifier["pooler"]["dense"], classifier["classes_dense"]
    return np.tanh(hidden @ dense["kernel"] + dense["bias"]) @ classes["kernel"] + classes["bias"]


def nll(logits, labels):
    """float64 [B], nats."""
    logits = np.asarray(logits, np.float64)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
