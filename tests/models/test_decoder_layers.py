"""model.num_decoder_layers: an encoder-decoder whose stacks have different numbers of layers."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.complete_p import factors
from models.flops import hidden_flops
from models.parameters import array_types
from models.transformer import apply
from tests.models import tiny

BATCH = tiny.rows("encoder", [[1, 1, 1, 2, 0]], [[7, 8, 9, 1, 0]]) | tiny.rows(
    "decoder", [[1, 1, 2, 0]], [[0, 5, 6, 0]]
)
DEPTHS = pytest.mark.parametrize(("encoder", "decoder"), [(3, 1), (1, 3)])


def config_of(encoder, decoder, **changes):
    return tiny.config(num_layers=encoder, num_decoder_layers=decoder, **changes)


@DEPTHS
def test_parameters_by_hand(encoder, decoder):
    """D 16, F 20 in three matrices, heads of 24 in total and keys and values of 12; two norms a layer, or three."""
    shapes = tiny.shapes(config_of(encoder, decoder))
    for path, shape in shapes.items():
        if "/layers/" in path:
            assert shape[0] == (encoder if path.startswith("encoder") else decoder), path
    attention, mlp = 2 * 16 * 24 + 2 * 16 * 12, 3 * 16 * 20
    layers = encoder * (attention + mlp + 2 * 16) + decoder * (2 * attention + mlp + 3 * 16)
    rest = 2 * 50 * 16 + 2 * 16 + 2 * 4 * 8  # two tables, two final norms, two tables of biases
    assert sum(np.prod(shape) for shape in shapes.values()) == layers + rest


@DEPTHS
def test_flops_by_hand(encoder, decoder):
    def attention(queries, keys):
        return 2 * (2 * queries * 16 * 24) + 2 * (2 * keys * 16 * 12) + 2 * (2 * queries * keys * 24)

    def mlp(length):
        return 3 * (2 * length * 16 * 20)

    expected = encoder * (attention(9, 9) + mlp(9)) + decoder * (attention(8, 8) + attention(8, 9) + mlp(8))
    assert hidden_flops(config_of(encoder, decoder), 9, 8) == expected


@pytest.mark.parametrize(
    ("encoder", "decoder", "changes"),
    [(3, 1, {}), (1, 3, {}), (1, 3, {"positions": "rope", "global_every": 2, "local_distance": 1})],
)
def test_it_is_a_model_of_equal_depths_whose_last_layers_add_nothing(encoder, decoder, changes):
    config, deep = config_of(encoder, decoder, **changes), tiny.config(num_layers=3, **changes)
    params, of_deep = tiny.params(config), copy.deepcopy(tiny.params(deep))
    for stack, depth in (("encoder", encoder), ("decoder", decoder)):
        of_deep[stack] = jax.tree.map(lambda leaf: leaf, params[stack])
        missing = 3 - depth
        of_deep[stack]["layers"] = jax.tree.map(
            lambda leaf: np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]),  # noqa: B023
            params[stack]["layers"],
        )
    of_deep |= {name: params[name] for name in ("token_embedder", "logits_dense")}
    np.testing.assert_allclose(tiny.run(config, params, BATCH), tiny.run(deep, of_deep, BATCH), rtol=1e-5, atol=1e-6)


def test_0_and_the_number_of_the_encoder_are_the_model_without_the_field():
    plain, config = tiny.config(), config_of(2, 2)
    assert config_of(2, 0) == plain
    params = tiny.params(plain)
    assert array_types(tiny.params(config)) == array_types(params)
    np.testing.assert_array_equal(tiny.run(config, params, BATCH), tiny.run(plain, params, BATCH))


def test_remat_and_unrolled_layers_change_no_loss_and_no_gradient():
    plain = config_of(1, 3)
    params = tiny.params(plain)

    @functools.partial(jax.jit, static_argnums=0)
    def loss_and_gradient(config, params):
        return jax.value_and_grad(lambda params: jnp.square(apply(config, params, BATCH)[:, :3]).mean())(params)

    expected = loss_and_gradient(plain, params)
    found = loss_and_gradient(config_of(1, 3, remat="full", scan_unroll=2), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def test_initial_values_and_steps_are_those_of_the_depth_of_the_stack():
    """GPT-2's deviation is 0.5 / sqrt(2 * 4) and 0.5 / sqrt(2 * 1). CompleteP's base has 2 layers in each stack."""
    outputs = tuple(f"{stack}/layers/mlp/wo/kernel" for stack in ("encoder", "decoder"))
    gpt2 = config_of(4, 1, initializer="gpt2", initializer_range=0.5, d_ff=400)
    for kernel, std in zip(tiny.initial(gpt2, outputs), (0.5 / 8**0.5, 0.5 / 2**0.5), strict=True):
        np.testing.assert_allclose(np.std(kernel), std, rtol=0.05)
    complete = config_of(8, 4, parameterization="complete_p", base_d_model=16, base_num_layers=2)
    found = [tuple(factors(complete, f"transformer/{name}")) for name in outputs]
    assert found == [(1 / 4, 1, 1 / 4), (1 / 2, 1, 1 / 2)]
    standard = config_of(8, 4)
    kernels = (tiny.initial(config, outputs) for config in (complete, standard))
    for ours, plain, depth in zip(*kernels, (4, 2), strict=True):
        np.testing.assert_allclose(ours * depth, plain, rtol=1e-5)


def test_stacks_of_shared_layers_have_one_depth():
    assert config_of(2, 2, share_stacks=True)
    with pytest.raises(ValueError, match=r"^model.num_decoder_layers=3 must be 0 for model.share_stacks=True, or "):
        config_of(2, 3, share_stacks=True)
