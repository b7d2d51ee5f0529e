"""BERT's pooler and the classifier on it, compared with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.heads import Classifier, Pooler, state_at
from models.parameters import bind_module, init_module
from tests.models import tiny

D = tiny.FIELDS["d_model"]


@pytest.fixture(scope="module")
def params():
    """Random parameters of a classifier: its biases are not 0."""
    generator, config = np.random.default_rng(0), tiny.config()
    shapes = jax.eval_shape(lambda: init_module(Classifier, config, 3, key=jax.random.key(0)))
    return jax.tree.map(lambda leaf: np.float32(generator.standard_normal(leaf.shape)), shapes)


def test_a_classifier_is_dense_tanh_dense(params):
    states = np.random.default_rng(1).standard_normal((5, D)).astype(np.float32)
    dense, classes = params["pooler"]["dense"], params["classes_dense"]
    assert dense["kernel"].shape == (D, D) and classes["kernel"].shape == (D, 3) and classes["bias"].shape == (3,)
    pooled = np.tanh(states @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(bind_module(Pooler, tiny.config(), params=params["pooler"])(states), pooled, atol=1e-5)
    logits = bind_module(Classifier, tiny.config(), 3, params=params)(states)
    np.testing.assert_allclose(logits, pooled @ classes["kernel"] + classes["bias"], atol=1e-4)


def test_state_at_takes_one_position_of_each_row():
    hidden = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    np.testing.assert_array_equal(state_at(hidden, jnp.asarray([2, 0])), [hidden[0, 2], hidden[1, 0]])
