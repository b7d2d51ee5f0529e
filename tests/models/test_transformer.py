"""The Transformer: names of parameters, dtypes, dropout, and the size of the compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.transformer import apply, bind, init_params
from tests.models import tiny

ENCODER = tiny.rows("encoder", [[1, 1, 1, 1, 0]], [[7, 8, 9, 1, 0]])
DECODER = tiny.rows("decoder", [[1, 1, 1, 0]], [[0, 5, 6, 0]])
BATCH = ENCODER | DECODER


def test_names_and_shapes_of_parameters():
    attention = lambda name: {  # noqa: E731
        f"{name}_norm/scale": (2, 16),
        f"{name}/query/kernel": (2, 16, 24),
        f"{name}/key/kernel": (2, 16, 12),
        f"{name}/value/kernel": (2, 16, 12),
        f"{name}/out/kernel": (2, 24, 16),
    }
    mlp = {
        "mlp_norm/scale": (2, 16),
        "mlp/wi_0/kernel": (2, 16, 20),
        "mlp/wi_1/kernel": (2, 16, 20),
        "mlp/wo/kernel": (2, 20, 16),
    }
    stack = {"final_norm/scale": (16,), "relative_position_bias/embedding": (4, 8)}
    encoder = {f"layers/{path}": shape for path, shape in (attention("self_attention") | mlp).items()} | stack
    decoder = {f"layers/{path}": shape for path, shape in attention("cross_attention").items()} | encoder
    assert tiny.shapes(tiny.config()) == {
        "token_embedder/embedding": (50, 16),
        "logits_dense/kernel": (16, 50),
        **{f"encoder/{path}": shape for path, shape in encoder.items()},
        **{f"decoder/{path}": shape for path, shape in decoder.items()},
    }


def test_each_stack_reads_its_own_positions_and_embedding_norm():
    config = tiny.config(positions="learned", embedding_norm=True)
    params = tiny.params(config)
    encode = jax.jit(lambda params: bind(config, params).encode(BATCH))
    for name in ("position_embedder", "embedding_norm"):
        changed = {stack: params | {f"{stack}_{name}": jax.tree.map(jnp.negative, params[f"{stack}_{name}"])}
                   for stack in ("encoder", "decoder")}  # fmt: skip
        assert (encode(changed["decoder"]) == encode(params)).all()
        assert (encode(changed["encoder"]) != encode(params)).any()
        assert (tiny.run(config, changed["decoder"], BATCH) != tiny.run(config, params, BATCH)).any()


def test_a_model_that_predicts_no_tokens_has_no_output_parameters():
    changes = dict(architecture="encoder_only", prediction_head="bert")
    config, whole = (tiny.config(**changes, predicts_tokens=value) for value in (False, True))
    heads = {"logits_dense/kernel", "prediction_head/dense/kernel", "prediction_head/norm/scale"}
    assert tiny.shapes(whole).keys() - tiny.shapes(config).keys() == heads
    params = tiny.params(whole)
    params = {name: params[name] for name in ("token_embedder", "encoder")}
    assert jax.eval_shape(lambda: bind(config, params).hidden(ENCODER)).shape == (1, 5, 16)
    with pytest.raises(ValueError, match="predicts_tokens=False has no logits"):
        bind(config, params)(ENCODER)


def test_logits_of_hidden_equal_the_call_for_any_positions():
    config = tiny.config(tie_embeddings=True, scale_logits=True)
    params = tiny.params(config)
    hidden = jax.jit(lambda params: bind(config, params).hidden(BATCH))(params)
    logits = tiny.run(config, params, BATCH)
    table = np.asarray(params["token_embedder"]["embedding"])
    np.testing.assert_allclose(logits, np.asarray(hidden) @ table.T / 4, atol=1e-5)
    np.testing.assert_allclose(bind(config, params).logits(hidden[0, 1]), logits[0, 1], atol=1e-5)


def test_scaled_logits_are_divided_by_the_root_of_the_width_of_the_table():
    shape = dict(architecture="encoder_only", prediction_head="bert", tie_embeddings=True, embedding_size=4)
    scaled, plain = (tiny.config(**shape, scale_logits=value) for value in (True, False))
    params = tiny.params(scaled)
    np.testing.assert_allclose(tiny.run(scaled, params, ENCODER), tiny.run(plain, params, ENCODER) / 2, atol=1e-6)


def count_equations(jaxpr):
    inner = [leaf for eqn in jaxpr.eqns for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr)]
    return len(jaxpr.eqns) + sum(count_equations(getattr(leaf, "jaxpr", leaf)) for leaf in inner if is_jaxpr(leaf))


def is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


def test_the_size_of_the_program_does_not_depend_on_num_layers():
    sizes = []
    for num_layers in (2, 8):
        config = tiny.config(num_layers=num_layers, dropout_rate=0.1)
        params = jax.eval_shape(lambda key, config=config: init_params(config, key), jax.random.key(0))

        def loss(params, key, config=config):
            return apply(config, params, BATCH, dropout_key=key).sum()

        step = jax.make_jaxpr(jax.grad(loss))(params, jax.random.key(0))
        init = jax.make_jaxpr(lambda key, config=config: init_params(config, key))(jax.random.key(0))
        sizes.append((count_equations(step.jaxpr), count_equations(init.jaxpr)))
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) > 100  # so the equations of nested programs were counted


def test_dropout_is_determined_by_its_key():
    config = tiny.config(dropout_rate=0.3)
    params = tiny.params(config)
    run = jax.jit(lambda key: apply(config, params, BATCH, dropout_key=key))
    without = tiny.run(config, params, BATCH)
    np.testing.assert_array_equal(without, tiny.run(tiny.config(), params, BATCH))
    np.testing.assert_array_equal(run(jax.random.key(0)), run(jax.random.key(0)))
    assert (run(jax.random.key(0)) != run(jax.random.key(1))).any()
    assert (run(jax.random.key(0)) != without).any()


def test_each_layer_draws_its_own_dropout():
    # Only the feed-forward bias of 1 is not 0, so each feature is determined by the layers that dropped it.
    config = tiny.config(
        architecture="encoder_only", num_layers=4, d_model=64, use_bias=True, norm_position="post", dropout_rate=0.5
    )
    params = jax.tree.map(jnp.zeros_like, tiny.params(config))
    layers = params["encoder"]["layers"]
    layers["mlp"]["wo"]["bias"] += 1
    for norm in ("self_attention_norm", "mlp_norm"):
        layers[norm]["scale"] += 1
    hidden = jax.jit(lambda key: bind(config, params).hidden(ENCODER, dropout_key=key))(jax.random.key(0))
    assert len(np.unique(hidden[0, 0])) > 4  # with the same draw in all layers there would be two values
