"""model.share_stacks: the encoder's layers are the decoder's, and every use of them counts in the gradient."""

import copy

import jax
import jax.numpy as jnp
import numpy as np

from models.transformer import apply
from tests.models import tiny

BATCH = tiny.rows("encoder", [[1, 1, 1, 2, 0]], [[7, 8, 9, 1, 0]]) | tiny.rows(
    "decoder", [[1, 1, 2, 0]], [[0, 5, 6, 0]]
)


def in_two_stacks(shared):
    """The parameters of two separate stacks with the values of shared ones."""
    params = copy.deepcopy(shared)
    layers = params["decoder"]["layers"]
    params["encoder"]["layers"] = {name: value for name, value in layers.items() if "cross_attention" not in name}
    return params


def test_the_parameters_are_those_of_the_decoder_and_the_encoders_norm_and_biases():
    shared, separate = (tiny.shapes(tiny.config(share_stacks=share)) for share in (True, False))
    assert shared == {path: shape for path, shape in separate.items() if not path.startswith("encoder/layers/")}
    assert {path for path in shared if path.startswith("encoder/")} == {
        "encoder/final_norm/scale",
        "encoder/relative_position_bias/embedding",
    }


def test_two_stacks_with_equal_layers_have_the_same_logits():
    shared, separate = (tiny.config(share_stacks=share) for share in (True, False))
    params = tiny.params(shared)
    expected = tiny.run(separate, in_two_stacks(params), BATCH)
    np.testing.assert_allclose(tiny.run(shared, params, BATCH), expected, rtol=1e-6, atol=1e-6)


def test_gradients_are_the_sums_of_both_uses():
    shared, separate = (tiny.config(share_stacks=share) for share in (True, False))
    params = tiny.params(shared)

    def loss(config, params):
        return jnp.square(apply(config, params, BATCH)[:, :3]).sum()

    ours = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)(shared, params)
    both = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)(separate, in_two_stacks(params))
    encoder = both["encoder"].pop("layers")
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(encoder))
    for name, gradients in encoder.items():
        both["decoder"]["layers"][name] = jax.tree.map(jnp.add, both["decoder"]["layers"][name], gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, both)
