"""Every attention kernel compared with float64 NumPy: outputs and gradients, for packed rows, prefixes and orders.

The lengths of rows are not multiples of the kernels' blocks.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from models import fused_attention, kernels
from models.attention import KeysValues
from models.kernels import choose_attention, make_attention_fn
from models.placement import placed, platform_of
from models.transformer import apply, init_params
from tests.models import tiny

H, G, K, SCALE = 4, 2, 8, 0.5


def segments(*lengths, row=130):
    """Segment ids of one row: segments of these lengths, then padding."""
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.pad(ids, (0, row - len(ids)))


PACKED = np.stack([segments(60, 50), segments(129, 1)])
ENCODER = np.stack([segments(3, 17, row=37), segments(36, row=37)])  # segment 2 of the second row has no keys
ONE = np.stack([segments(60), segments(129)])  # one segment in a row
ONE_ENCODER = np.stack([segments(21, row=37), segments(36, row=37)])
PREFIX = np.random.default_rng(1).random(PACKED.shape) < 0.3
ORDER = np.random.default_rng(2).integers(-3, 4, PACKED.shape)
WITHOUT_THAT_OF_ATTENTION = {"dropout_rate": 0.1, "attention_dropout": False}
on_one_device = lambda function, *_: function  # noqa: E731
ROWS = {  # segments of queries and of keys, and the other arguments of the mask
    "causal": (PACKED, PACKED, {"causal": True}),
    "prefix": (PACKED, PACKED, {"causal": True, "bidirectional_mask": PREFIX}),
    "order": (PACKED, PACKED, {"causal": False, "order_BxL": ORDER}),
    "cross": (PACKED, ENCODER, {"causal": False}),
    "merged": (PACKED, PACKED, {"causal": True, "encoder_segment_ids_BxE": ENCODER}),
    "one": (ONE, ONE, {"causal": False}),
    "one causal": (ONE, ONE, {"causal": True}),
    "one cross": (ONE, ONE_ENCODER, {"causal": False}),
}
LARGE_PACKED = np.tile(np.stack([segments(200, 180, 100, row=512), segments(511, 1, row=512)]), (4, 1))
LARGE_PACKED[:, -1] = 0
LARGE_ONE = np.tile(np.stack([segments(300, row=512), segments(511, row=512)]), (4, 1))
LARGE_ROWS = {  # 8 rows of 512, for tests on an accelerator
    "8 x 512 encoder": (LARGE_PACKED, LARGE_PACKED, {"causal": False}),
    "8 x 512 causal": (LARGE_PACKED, LARGE_PACKED, {"causal": True}),
    "one of 8 x 512": (LARGE_ONE, LARGE_ONE, {"causal": False}),
    "one causal of 8 x 512": (LARGE_ONE, LARGE_ONE, {"causal": True}),
}
ALL_ROWS = ROWS | LARGE_ROWS


def mask_by_definition(name):
    """bool [B, Q, S]: what `attention_mask` must return for ALL_ROWS[name]."""
    queries, keys, options = ALL_ROWS[name]
    visible = (queries[:, :, None] == keys[:, None]) & (keys[:, None] > 0)
    if options["causal"]:
        visible &= np.tri(queries.shape[1], dtype=bool) | (PREFIX[:, None] if name == "prefix" else False)
    if name == "merged":
        of_encoder = (queries[:, :, None] == ENCODER[:, None]) & (ENCODER[:, None] > 0)
        return np.concatenate([visible, of_encoder], axis=2)
    query, key = ORDER[:, :, None], ORDER[:, None]
    in_order = (key >= 0) & np.where(query < 0, key < -query, key <= query) | (key == query)
    return visible & in_order if name == "order" else visible


def inputs(name, with_bias):
    """Queries, keys, values, bias (or None), and the output's gradient, all float32."""
    queries, keys, options = ALL_ROWS[name]
    rng = np.random.default_rng(0)
    (B, Q), S = queries.shape, keys.shape[1]
    all_keys = S + ("encoder_segment_ids_BxE" in options) * ENCODER.shape[1]  # the bias is of the row's own keys
    shapes = (B, H, Q, K), (B, G, all_keys, K), (B, G, all_keys, K), (1, H, Q, S), (B, H, Q, K)
    query, key, value, bias, output_bar = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return query, key, value, bias if with_bias else None, output_bar


@functools.cache
def expected(name, with_bias):
    """float64: the output, and the gradients of queries, keys, values (and the bias)."""
    query, key, value, bias, output_bar = (None if x is None else x.astype(np.float64) for x in inputs(name, with_bias))
    mask = mask_by_definition(name)[:, None]
    keys, values = (x.repeat(H // G, axis=1) for x in (key, value))
    scores = SCALE * np.einsum("BHQK,BHSK->BHQS", query, keys)
    if bias is not None:
        scores[..., : bias.shape[-1]] += bias
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    probabilities = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    scores_bar = np.einsum("BHQK,BHSK->BHQS", output_bar, values) * probabilities
    scores_bar -= probabilities * scores_bar.sum(-1, keepdims=True)
    sum_groups = lambda x: x.reshape(len(x), G, H // G, *x.shape[2:]).sum(2)  # noqa: E731
    gradients = [
        SCALE * np.einsum("BHQS,BHSK->BHQK", scores_bar, keys),
        sum_groups(SCALE * np.einsum("BHQS,BHQK->BHSK", scores_bar, query)),
        sum_groups(np.einsum("BHQS,BHQK->BHSK", probabilities, output_bar)),
    ]
    output = np.einsum("BHQS,BHSK->BHQK", probabilities, values)
    return output, gradients + ([scores_bar.sum(0, keepdims=True)[..., : bias.shape[-1]]] if with_bias else [])


def check(name, attention, *, with_bias=True, dtype="float32", tolerance=2e-5):
    """Asserts that the kernel `attention`, on arrays of `dtype`, agrees with `expected`."""
    queries, keys, options = ALL_ROWS[name]
    options = options | {field: jnp.asarray(value) for field, value in options.items() if field != "causal"}
    query, key, value, bias, output_bar = inputs(name, with_bias)
    positions, one_segment = "relative" if with_bias else "rope", name.startswith("one")
    config = tiny.config(attention=attention, positions=positions, head_dim=K, dtype=dtype, one_segment=one_segment)

    def weighted_output(query, key, value, *bias):
        bias = bias[0] if bias else None
        attention_fn = make_attention_fn(config, jnp.asarray(queries), jnp.asarray(keys), **options, bias_1xHxQxS=bias)
        output = attention_fn(query, KeysValues(key, value), scale=SCALE)
        return (output * output_bar).sum(), output

    arguments = tuple(x.astype(dtype) for x in (query, key, value)) + ((bias,) if with_bias else ())
    gradients, output = jax.jit(jax.grad(weighted_output, tuple(range(len(arguments))), has_aux=True))(*arguments)
    expected_output, expected_gradients = expected(name, with_bias)
    for ours, theirs in zip((output, *gradients), (expected_output, *expected_gradients), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float32), theirs, rtol=tolerance, atol=tolerance)
    fully_masked = ~mask_by_definition(name).any(-1)
    assert fully_masked.any() and (np.asarray(output).swapaxes(1, 2)[fully_masked] == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_xla(name):
    check(name, "xla")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "name", "with_bias"),
    [
        ("splash", "causal", False),
        ("splash", "cross", False),
        ("flash", "prefix", True),
        ("flash", "order", False),
        ("flash", "cross", False),
        ("flash", "merged", False),
        ("flash", "merged", True),
    ],
)
def test_kernels_for_tpus_on_rows_of_two_padded_blocks(kernel, name, with_bias, monkeypatch):
    monkeypatch.setattr(fused_attention, "LARGEST_BLOCK", 128)
    make_kernel = functools.partial(fused_attention.splash.make_splash_mha, interpret=True)
    monkeypatch.setattr(fused_attention.splash, "make_splash_mha", make_kernel)
    interpreted = pltpu.force_tpu_interpret_mode() if kernel == "flash" else contextlib.nullcontext()
    with placed(platform="tpu", over_devices=on_one_device), interpreted:
        check(name, kernel, with_bias=with_bias)


def test_the_soft_cap_of_splash_attention(monkeypatch):
    """In the interpreter, against XLA's operations, which tests/models/test_encoders.py compares with autodiff."""
    make_kernel = functools.partial(fused_attention.splash.make_splash_mha, interpret=True)
    monkeypatch.setattr(fused_attention.splash, "make_splash_mha", make_kernel)
    query, key, value, _, output_bar = inputs("causal", False)
    queries, keys, options = ROWS["causal"]

    def loss(arguments, kernel):
        config = tiny.config(attention=kernel, positions="rope", head_dim=K, attention_softcap=0.8)
        attention_fn = make_attention_fn(config, jnp.asarray(queries), jnp.asarray(keys), **options)
        return (attention_fn(arguments[0], KeysValues(*arguments[1:])) * output_bar).sum()

    arguments = tuple(map(jnp.asarray, (query, key, value)))
    expected = jax.value_and_grad(loss)(arguments, "xla")
    with placed(platform="tpu", over_devices=on_one_device):
        found = jax.value_and_grad(loss)(arguments, "splash")
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, expected)


@pytest.mark.parametrize(
    ("name", "with_bias"),
    [
        ("causal", True),
        ("prefix", True),
        ("order", False),
        ("cross", False),
        ("cross", True),
        ("merged", True),
        ("merged", False),
        ("one", True),
        ("one causal", True),
        ("one causal", False),
        ("one cross", False),
    ],
)
def test_the_arguments_of_cudnn_by_xlas_implementation(name, with_bias, monkeypatch):
    """cuDNN cannot run on CPU. Its arguments are passed to jax.nn's XLA implementation instead, in float32."""

    def of_xla(query, *args, implementation, **options):
        assert implementation == "cudnn" and query.shape[1] % 8 == 0
        assert options["is_causal"] == ("causal" in name)
        shapes = {option: array.shape for option, array in options.items() if hasattr(array, "shape")}
        if name.startswith("one"):  # lengths, and a bias without an entry for each row
            assert shapes.pop("query_seq_lengths") == shapes.pop("key_value_seq_lengths") == (2,)
            assert shapes == ({"bias": (1, H, 136, 136)} if with_bias else {})
        return dot_product_attention(query, *args, **options)

    dot_product_attention = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", of_xla)
    monkeypatch.setattr(kernels, "_unsupported", lambda *_: None)
    monkeypatch.setitem(fused_attention._CUDNN_MASK_VALUE, "float32", -1e9)
    check(name, "cudnn", with_bias=with_bias)


@pytest.mark.skipif(
    platform_of(jax.devices()[0]) not in ("cuda", "hopper"),
    reason="needs an NVIDIA GPU, Ampere or newer, and JAX_PLATFORMS=cuda",
)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", ALL_ROWS)
def test_cudnn_on_a_gpu(name, with_bias):
    check(name, "cudnn", with_bias=with_bias, dtype="bfloat16", tolerance=5e-2)


def test_rows_of_one_segment_have_no_array_for_each_row_head_query_and_key(monkeypatch):
    """Lowered for a GPU, with dropout of all but the attention probabilities.

    The bias and its gradient are [1, H, Q, S]; cross-attention's mask has no gradient.
    """
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    batch = tiny.rows("encoder", [[1, 1, 1, 0, 0]] * 3, [[3] * 5] * 3) | tiny.rows(
        "decoder", [[1] * 7] * 3, [[4] * 7] * 3
    )
    for one_segment in (True, False):
        config = tiny.config(dtype="bfloat16", head_dim=16, one_segment=one_segment, **WITHOUT_THAT_OF_ATTENTION)
        with placed(platform="cuda", over_devices=on_one_device):
            traced = jax.jit(
                jax.grad(lambda params, key, config=config: apply(config, params, batch, dropout_key=key).sum())
            ).trace(shapes_of(config), jax.random.key(0))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        calls = [line for line in text.splitlines() if "@__cudnn$fmha" in line]
        assert len(calls) == 6  # three attentions, each with its backward pass
        assert ("tensor<3x4x8x8x" in text) is not one_segment
        without_bias = [line for line in calls if "@__cudnn$fmhaSoftmax" in line]
        assert len(without_bias) == (2 if one_segment else 0)
        if one_segment:
            assert sum("tensor<1x4x8x8xbf16>" in line.rpartition("->")[2] for line in calls) == 2
            kinds = [line.partition("\\22mask_type\\22: \\22")[2].partition("\\22")[0] for line in calls]
            assert sorted(kinds) == ["PADDING"] * 4 + ["PADDING_CAUSAL"] * 2


SUPPORTED = "supports this model"
NO_DROPOUT = (
    "has no dropout, and model.dropout_rate=0.1: with model.attention_dropout=False attention probabilities have none"
)


def shapes_of(config):
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


@pytest.mark.parametrize(
    ("platform", "changes", "options", "name", "reason"),
    [
        ("cpu", {}, {}, "xla", "no fused kernel for cpu"),
        ("cuda", {}, {}, "cudnn", SUPPORTED),
        ("cuda", {}, {"per_row_masks": True}, "cudnn", SUPPORTED),
        ("cuda", {"dtype": "float32"}, {}, "xla", "cudnn needs precision='bfloat16' or 'float16', not 'float32'"),
        ("cpu", {"dropout_rate": 0.1}, {}, "xla", "no fused kernel for cpu"),
        ("cuda", {"dropout_rate": 0.1}, {}, "xla", f"cudnn {NO_DROPOUT}"),
        ("hopper", WITHOUT_THAT_OF_ATTENTION, {}, "cudnn", SUPPORTED),
        ("cuda", {"attention_dropout": False}, {}, "cudnn", SUPPORTED),
        # Without dropout, a kernel would compute the second of these three alone.
        (
            "tpu",
            {"dropout_rate": 0.1, "dtype": "float16"},
            {},
            "xla",
            "flash needs precision='bfloat16' or 'float32', not 'float16'",
        ),
        ("tpu", {"dropout_rate": 0.1, "attention_softcap": 50.0}, {}, "xla", f"splash {NO_DROPOUT}"),
        (
            "tpu",
            {"dropout_rate": 0.1},
            {"length": 64},
            "xla",
            "flash computes blocks of 128 positions, and rows have 64",
        ),
        ("tpu", WITHOUT_THAT_OF_ATTENTION, {}, "splash", SUPPORTED),
        (
            "tpu",
            WITHOUT_THAT_OF_ATTENTION,
            {"length": 511},
            "flash",
            "splash computes blocks of 512 positions, and rows have 511",
        ),
        ("cuda", {"head_dim": 256}, {}, "xla", "cudnn needs a multiple of 8 up to 128 for model.head_dim=256"),
        ("hopper", {"head_dim": 256}, {}, "cudnn", SUPPORTED),
        ("cuda", {"attention": "xla"}, {}, "xla", "model.attention='xla'"),
        ("tpu", {}, {}, "splash", SUPPORTED),
        ("tpu", {"dtype": "float16"}, {}, "xla", "flash needs precision='bfloat16' or 'float32', not 'float16'"),
        ("tpu", {"positions": "relative"}, {}, "flash", "splash has no bias, and model.positions='relative' needs one"),
        ("tpu", {}, {"length": 511}, "flash", "splash computes blocks of 512 positions, and rows have 511"),
        ("tpu", {}, {"length": 64}, "xla", "flash computes blocks of 128 positions, and rows have 64"),
        (
            "tpu",
            {},
            {"per_row_masks": True},
            "flash",
            "splash has no prefix and no attention order, which rows here have",
        ),
        ("tpu", {"attention": "splash"}, {"length": 3}, "splash", "model.attention='splash'"),
        ("tpu", {"attention_softcap": 50.0}, {}, "splash", SUPPORTED),
        ("cuda", {"attention_softcap": 50.0}, {}, "xla", "cudnn has no soft-cap, and model.attention_softcap=50.0"),
        (
            "tpu",
            {"global_every": 3},
            {},
            "xla",
            "flash has one mask for all layers, and model.global_every=3 gives some a local one",
        ),
    ],
)
def test_the_chosen_kernel_and_the_reason(platform, changes, options, name, reason):
    config = tiny.config(**{"positions": "rope", "dtype": "bfloat16", "head_dim": 64} | changes)
    assert choose_attention(config, platform, **{"length": 512} | options) == (name, reason)


@pytest.mark.parametrize(
    ("platform", "changes", "reason"),
    [
        ("cpu", {"attention": "cudnn"}, "cudnn needs an NVIDIA GPU, Ampere or newer, not cpu"),
        ("gpu", {"attention": "splash"}, "splash needs a TPU, not another GPU"),
        ("cuda", {"attention": "cudnn"}, "cudnn needs precision='bfloat16' or 'float16', not 'float32'"),
        ("tpu", {"attention": "flash", "dropout_rate": 0.1}, f"flash {NO_DROPOUT}"),
        ("cuda", {"attention": "flash"}, "flash needs a TPU, not cuda"),
        ("tpu", {"attention": "flash", "attention_softcap": 50.0}, "flash has no soft-cap, and model.attention_softc"),
        ("tpu", {"attention": "splash", "global_every": 3}, "splash has one mask for all layers, and model.global_ev"),
    ],
)
def test_a_kernel_that_cannot_run_raises_one_line(platform, changes, reason):
    config = tiny.config(**{"positions": "rope"} | changes)
    message = f"^model.attention='{config.attention}' must be 'auto' or 'xla': {reason}"
    with pytest.raises(ValueError, match=message) as error:
        choose_attention(config, platform, length=512)
    assert "\n" not in str(error.value)
    batch = tiny.rows("encoder", [[1]], [[3]]) | tiny.rows("decoder", [[1]], [[4]])
    with pytest.raises(ValueError, match=message), placed(platform=platform, over_devices=on_one_device):
        jax.eval_shape(lambda params: apply(config, params, batch), shapes_of(config))


def test_kernels_for_tpus_name_the_dimensions_of_their_arguments_for_over_devices():
    config = tiny.config(architecture="decoder_only", attention="auto", positions="rope")
    batch = tiny.rows("decoder", [[1] * 512], [[3] * 512]) | {"decoder_bidirectional_mask": jnp.zeros((1, 512), bool)}
    dimensions = []

    def over_devices(function, arguments, result):
        dimensions.append((*arguments, result))
        return function

    for has_prefix in (False, True):
        with placed(platform="tpu", over_devices=over_devices):
            changed = dataclasses.replace(config, has_prefix=has_prefix)
            jax.eval_shape(lambda params, config=changed: apply(config, params, batch), shapes_of(config))
    assert dimensions == [("BHQK", "BGSK", "BGSK", "BQ", "BS", "BHQK"), ("BHQK", "BGSK", "BGSK", "BHQS", "BHQK")]
