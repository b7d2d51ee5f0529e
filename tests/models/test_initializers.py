"""Initial parameters. d_model, the heads' width and d_ff all differ, so that a wrong fan fails the test."""

import jax
import numpy as np
import pytest

from learners.next_latent import LatentDynamics
from models.heads import Classifier, DiscriminatorHead
from models.multi_token import SequentialHead
from models.parameters import init_module
from models.transformer import init_params
from tests.models import tiny

SIZES = dict(num_layers=3, d_model=48, num_heads=8, num_kv_heads=4, head_dim=16, d_ff=80, vocab_size=100)


@pytest.fixture(scope="module")
def t5():
    config = tiny.config(**SIZES, relative_num_buckets=32, relative_max_distance=128)
    return initial_params(config)


def initial_params(config):
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    return {path: np.asarray(leaf) for path, leaf in tiny.by_path(params).items()}


def assert_std(array, std):
    """The standard deviation is within four standard errors of `std`, and the mean within four of 0."""
    assert array.std() == pytest.approx(std, rel=4 / np.sqrt(2 * array.size))
    assert abs(array.mean()) < 4 * std / np.sqrt(array.size)


@pytest.mark.parametrize(
    "path, std",
    [
        ("self_attention/query", (48 * 16) ** -0.5),
        ("self_attention/key", 48**-0.5),
        ("self_attention/value", 48**-0.5),
        ("self_attention/out", (8 * 16) ** -0.5),
        ("cross_attention/query", (48 * 16) ** -0.5),
        ("cross_attention/out", (8 * 16) ** -0.5),
        ("mlp/wi_0", 48**-0.5),
        ("mlp/wi_1", 48**-0.5),
        ("mlp/wo", 80**-0.5),
    ],
)
def test_t5_matrices_layer_by_layer(t5, path, std):
    kernel = t5[f"decoder/layers/{path}/kernel"]
    assert len(kernel) == 3
    for layer in kernel:
        assert_std(layer, std)
    assert len({layer.tobytes() for layer in kernel}) == 3
    # Kernels of the feed-forward block are truncated at two standard deviations of the normal before truncation.
    bound = 2 * std / 0.87962566
    assert (np.abs(kernel).max() <= bound * 1.0001) == path.startswith("mlp")


def test_t5_tables(t5):
    assert_std(t5["token_embedder/embedding"], 1.0)
    assert_std(t5["logits_dense/kernel"], 48**-0.5)
    assert np.abs(t5["logits_dense/kernel"]).max() <= 2.0001 * 48**-0.5 / 0.87962566
    bias = t5["encoder/relative_position_bias/embedding"]
    limit = np.sqrt(3 / ((8 + 32) / 2))  # uniform; its variance is 1 / the mean of the two sizes
    assert bias.shape == (8, 32) and 0.9 * limit < np.abs(bias).max() <= limit
    assert_std(bias, limit / np.sqrt(3))
    assert all((scale == 1).all() for path, scale in t5.items() if path.endswith("scale"))


def test_query_kernels_do_not_contain_the_scale_where_attention_scales():
    config = tiny.config(**SIZES, architecture="encoder_only", scale_attention=True)
    [kernel] = tiny.initial(config, ("encoder/layers/self_attention/query/kernel",))
    assert_std(np.asarray(kernel), 48**-0.5)


def test_gpt2_divides_the_initial_outputs_into_the_residual_stream_by_the_root_of_their_number():
    """With 3 layers, 6 outputs are added: N(0, 0.05 / sqrt(6)), and N(0, 0.05) for everything else."""
    options = dict(initializer="gpt2", initializer_range=0.05, architecture="decoder_only", mlp="gelu", use_bias=True)
    params = initial_params(tiny.config(**SIZES, **options, norm="layer", positions="learned"))
    residual_outputs = ["decoder/layers/self_attention/out/kernel", "decoder/layers/mlp/wo/kernel"]
    assert set(residual_outputs) < set(params)
    for path, array in params.items():
        if path.endswith(("kernel", "embedding")):
            assert_std(array, 0.05 / np.sqrt(6) if path in residual_outputs else 0.05)
        else:
            assert (array == (1 if path.endswith("scale") else 0)).all(), path


@pytest.mark.parametrize(
    ("module", "sizes"), [(Classifier, (64,)), (DiscriminatorHead, ()), (SequentialHead, ()), (LatentDynamics, ())]
)
def test_heads_are_drawn_from_the_distribution_of_the_model(module, sizes):
    shape = dict(architecture="encoder_only", norm="layer", use_bias=True, mlp="gelu")
    config = tiny.config(**SIZES, **shape, initializer="normal", initializer_range=0.05)
    for path, array in tiny.by_path(init_module(module, config, *sizes, key=jax.random.key(0))).items():
        if path.endswith("kernel"):
            assert_std(np.asarray(array), 0.05)
        else:
            assert (array == path.endswith("scale")).all(), path
