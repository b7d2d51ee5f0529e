"""Under bfloat16 and float16 products are of half precision; softmax, norms, losses and z-loss are not."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from experiment.experiment import make_experiment
from learners import LEARNERS
from models.attention import KeysValues, dot_product_attention
from models.layers import gelu
from tests.table import PAIRS, objective_of, random_windows, small_config
from tests.train.tiny_experiments import tiny_experiment

# What softmax, norms and losses are made of.
FLOAT32_ONLY = {"exp", "log", "log1p", "sqrt", "rsqrt", "square", "integer_pow", "reduce_sum", "reduce_max", "argmax",
                "cumsum"}  # fmt: skip
T5 = ("span_corruption", "encoder_decoder", {})
BERT = ("mlm", "encoder_only", dict(mlp="gelu", positions="learned", norm="layer", norm_position="post", use_bias=True,
                                    tie_embeddings=True, embedding_norm=True, prediction_head="bert"))  # fmt: skip
# Learner -> a config and an architecture, for every learner but token prediction.
OTHERS = {
    LEARNERS[learner]: (name, architecture)
    for name, architecture in PAIRS
    if (learner := objective_of(name).learner) != "token_prediction"
}


def equations(jaxpr):
    """Of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from equations(getattr(inner, "jaxpr", inner))


def primitives(function, params, precision):
    """Names of the operations of `function` that read numbers of half precision, and of the others."""
    half, others = set(), set()
    for equation in equations(jax.make_jaxpr(function)(params).jaxpr):
        dtypes = {getattr(variable.aval, "dtype", None) for variable in equation.invars}
        (half if jnp.dtype(precision) in dtypes else others).add(equation.primitive.name)
    return half, others


def loss_of(experiment, learner):
    """The loss as a function of the parameters, on a batch, and the parameters' shapes."""
    batch = experiment.collate(random_windows(experiment, 4, same_keys=False), 4)
    batch = jax.tree.map(jnp.asarray, batch)

    def loss(params):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[0]

    return loss, jax.eval_shape(learner.init_params, jax.random.key(0))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", [T5, BERT])
def test_softmax_norms_and_losses_are_float32(model, precision):
    name, architecture, model = model
    experiment = tiny_experiment(name, architecture, precision=precision, model=model)
    setup = experiment.learner.setup
    setup = dataclasses.replace(setup, loss=dataclasses.replace(setup.loss, z_loss=1e-4, label_smoothing=0.1))
    loss, params = loss_of(experiment, dataclasses.replace(experiment.learner, setup=setup))
    for function, also in ((loss, set()), (jax.grad(loss), {"reduce_sum"})):  # the gradient of a bias is a sum
        half, others = primitives(function, params, precision)
        assert not half & FLOAT32_ONLY - also
        assert "dot_general" in half and {"exp", "log", "rsqrt", "reduce_sum", "reduce_max"} <= others
    assert jax.eval_shape(loss, params).dtype == jnp.float32


@pytest.mark.parametrize("learner", OTHERS, ids=lambda learner: learner.__name__)
def test_the_losses_of_the_other_learners_are_float32(learner):
    experiment = make_experiment(small_config(*OTHERS[learner]) | {"precision": "float16"})
    assert type(experiment.learner) is learner
    loss, params = loss_of(experiment, experiment.learner)
    half, others = primitives(loss, params, "float16")
    assert not half & FLOAT32_ONLY
    assert "dot_general" in half and {"log", "log1p"} & others
    assert jax.eval_shape(loss, params).dtype == jnp.float32


def test_scores_beyond_float16_are_ranked_all_the_same():
    # Products of 2 * 200 * 200 = 80,000 and 2 * 200 * 199.5 = 79,800: both infinite in float16.
    query = jnp.full((1, 1, 1, 2), 200, jnp.float16)
    keys = jnp.asarray([[[[200, 200], [199.5, 199.5]]]], jnp.float16)
    values = jnp.asarray([[[[1, 2], [3, 4]]]], jnp.float16)
    seen = jnp.ones((1, 1, 1, 2), bool)
    mixed = dot_product_attention(query, KeysValues(keys, values), mask_Bx1xQxS=seen, bias_1xHxQxS=None, scale=1.0)
    assert mixed.dtype == jnp.float16 and mixed.tolist() == [[[[1, 2]]]]


def test_gelu_has_a_gradient_wherever_float16_has_numbers():
    x = jnp.asarray([-6e4, -150, 0, 150, 6e4], jnp.float16)
    assert jax.vmap(jax.grad(gelu))(x).tolist() == [0, 0, 0.5, 1, 1]
