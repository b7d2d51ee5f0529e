"""Every kernel beside float64 NumPy: values and gradients, packed rows, prefixes, lengths that are no whole blocks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import kernel_cudnn, kernel_splash, kernels
from models.attention import KeysValues
from models.kernels import attend_by, choose_attention
from models.placement import compiled_for, platform_of
from models.transformer import apply, init_params
from tests.models import tiny

H, G, K, SCALE = 4, 2, 8, 0.5


def segments(*lengths, row=130):
    """Segment ids of one row: segments of these lengths, then padding."""
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.pad(ids, (0, row - len(ids)))


PACKED = np.stack([segments(60, 50), segments(129, 1)])
ENCODER = np.stack([segments(3, 17, row=37), segments(36, row=37)])  # the second of row 1 finds no key
PREFIX = np.random.default_rng(1).random(PACKED.shape) < 0.3
ORDER = np.random.default_rng(2).integers(0, 4, PACKED.shape)
on_one_device = lambda function, *_: function  # noqa: E731
ROWS = {  # queries' and keys' segments, and what else says who sees whom
    "causal": (PACKED, PACKED, {"causal": True}),
    "prefix": (PACKED, PACKED, {"causal": True, "bidirectional_mask_BxS": PREFIX}),
    "order": (PACKED, PACKED, {"causal": False, "order_BxL": ORDER}),
    "cross": (PACKED, ENCODER, {"causal": False}),
}


def visible_by_definition(name):
    """bool [B, Q, S]"""
    queries, keys, rule = ROWS[name]
    visible = (queries[:, :, None] == keys[:, None]) & (keys[:, None] > 0)
    if rule["causal"]:
        visible &= np.tri(queries.shape[1], dtype=bool) | (PREFIX[:, None] if name == "prefix" else False)
    return visible & (ORDER[:, None] <= ORDER[:, :, None]) if name == "order" else visible


def inputs(name, with_bias):
    """Queries, keys, values, bias (or None), and what the result is weighed with to be differentiated."""
    queries, keys, _ = ROWS[name]
    rng = np.random.default_rng(0)
    (B, Q), S = queries.shape, keys.shape[1]
    shapes = (B, H, Q, K), (B, G, S, K), (B, G, S, K), (1, H, Q, S), (B, H, Q, K)
    query, key, value, bias, weight = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return query, key, value, bias if with_bias else None, weight


@functools.cache
def expected(name, with_bias):
    """float64: the result, and the gradients of its weighed sum for queries, keys, values (and the bias)."""
    query, key, value, bias, weight = (None if x is None else x.astype(np.float64) for x in inputs(name, with_bias))
    visible = visible_by_definition(name)[:, None]
    keys, values = (x.repeat(H // G, axis=1) for x in (key, value))
    scores = SCALE * np.einsum("BHQK,BHSK->BHQS", query, keys) + (0 if bias is None else bias)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * visible
    probabilities = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    moved = np.einsum("BHQK,BHSK->BHQS", weight, values) * probabilities
    moved -= probabilities * moved.sum(-1, keepdims=True)
    of_group = lambda x: x.reshape(len(x), G, H // G, *x.shape[2:]).sum(2)  # noqa: E731
    gradients = [
        SCALE * np.einsum("BHQS,BHSK->BHQK", moved, keys),
        of_group(SCALE * np.einsum("BHQS,BHQK->BHSK", moved, query)),
        of_group(np.einsum("BHQS,BHQK->BHSK", probabilities, weight)),
    ]
    result = np.einsum("BHQS,BHSK->BHQK", probabilities, values)
    return result, gradients + ([moved.sum(0, keepdims=True)] if with_bias else [])


def check(name, attention, *, with_bias=True, dtype="float32", tolerance=2e-5):
    """What `attend_by` builds for `attention`, given arrays of `dtype`, is as the reference."""
    queries, keys, rule = ROWS[name]
    rule = rule | {field: jnp.asarray(value) for field, value in rule.items() if field != "causal"}
    query, key, value, bias, weight = inputs(name, with_bias)
    config = tiny.config(attention=attention, positions="relative" if with_bias else "rope", head_dim=K, dtype=dtype)

    def attended(query, key, value, *bias):
        bias = bias[0] if bias else None
        attend = attend_by(config, jnp.asarray(queries), jnp.asarray(keys), **rule, bias_1xHxQxS=bias)
        one = attend(query, KeysValues(key, value), scale=SCALE)
        return (one * weight).sum(), one

    arguments = tuple(x.astype(dtype) for x in (query, key, value)) + ((bias,) if with_bias else ())
    gradients, result = jax.jit(jax.grad(attended, tuple(range(len(arguments))), has_aux=True))(*arguments)
    expected_result, expected_gradients = expected(name, with_bias)
    for ours, theirs in zip((result, *gradients), (expected_result, *expected_gradients), strict=True):
        ours = np.asarray(ours, np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    sees_nothing = ~visible_by_definition(name).any(-1)
    assert sees_nothing.any() and (np.asarray(result).swapaxes(1, 2)[sees_nothing] == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_xla(name):
    check(name, "xla")


@pytest.mark.parametrize("name", ROWS)
def test_splash_of_two_blocks_that_are_not_whole(name, monkeypatch):
    monkeypatch.setattr(kernel_splash, "LARGEST_BLOCK", 128)
    monkeypatch.setattr(kernels, "splash_attention", functools.partial(kernel_splash.splash_attention, interpret=True))
    with compiled_for("tpu", on_one_device):
        check(name, "splash", with_bias=False)


@pytest.mark.parametrize(
    ("name", "with_bias"), [("causal", True), ("prefix", True), ("order", False), ("cross", False), ("cross", True)]
)
def test_what_cudnn_is_given_means_the_same(name, with_bias, monkeypatch):
    """It cannot run here: jax.nn's other implementation gets its arguments, whole multiples of 8 long, and computes in
    their float32."""

    def of_xla(query, *args, implementation, **options):
        assert implementation == "cudnn" and query.shape[1] % 8 == 0
        assert options["is_causal"] == (name == "causal")
        return dot_product_attention(query, *args, **options)

    dot_product_attention = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", of_xla)
    monkeypatch.setattr(kernels, "_obstacle", lambda *_: None)
    monkeypatch.setitem(kernel_cudnn._HIDDEN, "float32", -1e9)
    check(name, "cudnn", with_bias=with_bias)


@pytest.mark.skipif(
    platform_of(jax.devices()[0]) != "cuda", reason="needs an NVIDIA GPU, Ampere or newer, and JAX_PLATFORMS=cuda"
)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_cudnn_on_a_gpu(name, with_bias):
    check(name, "cudnn", with_bias=with_bias, dtype="bfloat16", tolerance=5e-2)


def test_cudnn_lowers_for_a_gpu_with_its_gradient(monkeypatch):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    config = tiny.config(attention="auto", dtype="bfloat16", num_kv_heads=2, head_dim=16)
    batch = tiny.rows("encoder", [[1, 1, 2, 0, 0]], [[3] * 5]) | tiny.rows("decoder", [[1] * 7], [[4] * 7])
    with compiled_for("cuda", on_one_device):
        traced = jax.jit(jax.grad(lambda params: apply(config, params, batch).sum())).trace(shapes_of(config))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    backward = [line for line in text.splitlines() if "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in line]
    assert text.count("@__cudnn$fmhaScaleBiasSoftmax(") == len(backward) == 3
    # Queries, keys, values and, in both self attentions, the bias: a kernel that gives no gradient for it gives zeros.
    results = [line.rpartition("->")[2] for line in backward]
    assert sum("tensor<1x4x8x8xbf16>" in result for result in results) == 2


FITS = "nothing in this model is against it"


def shapes_of(config):
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


@pytest.mark.parametrize(
    ("platform", "changes", "options", "name", "reason"),
    [
        ("cpu", {}, {}, "xla", "there is no other on cpu"),
        ("gpu", {}, {}, "xla", "there is no other on gpu"),
        ("cuda", {}, {}, "cudnn", FITS),
        ("cuda", {}, {"masks_of_rows": True}, "cudnn", FITS),
        ("cuda", {"positions": "relative"}, {}, "cudnn", FITS),
        (
            "cuda",
            {"dtype": "float32"},
            {},
            "xla",
            "cudnn computes in bfloat16 or float16, and precision is float32",
        ),
        ("cuda", {"dropout_rate": 0.1}, {}, "xla", "cudnn drops no probabilities, and model.dropout_rate=0.1"),
        ("cuda", {"head_dim": 256}, {}, "xla", "cudnn takes multiples of 8 up to 128, and model.head_dim=256"),
        ("cuda", {"attention": "xla"}, {}, "xla", "asked for"),
        ("tpu", {}, {}, "splash", FITS),
        ("tpu", {"head_dim": 256}, {}, "splash", FITS),
        (
            "tpu",
            {"dtype": "float16"},
            {},
            "xla",
            "splash computes in bfloat16 or float32, and precision is float16",
        ),
        ("tpu", {"positions": "relative"}, {}, "xla", "splash takes no bias, and model.positions='relative'"),
        ("tpu", {}, {"length": 511}, "xla", "splash has blocks of 512, and rows are 511 long"),
        (
            "tpu",
            {},
            {"masks_of_rows": True},
            "xla",
            "splash runs row by row where every row has a mask of its own",
        ),
        ("tpu", {"attention": "splash"}, {"length": 3, "masks_of_rows": True}, "splash", "asked for"),
    ],
)
def test_the_choice_and_why(platform, changes, options, name, reason):
    config = tiny.config(**{"positions": "rope", "dtype": "bfloat16", "head_dim": 64} | changes)
    assert choose_attention(config, platform, **{"length": 512} | options) == (name, reason)


@pytest.mark.parametrize(
    ("platform", "changes", "reason"),
    [
        ("cpu", {"attention": "cudnn"}, "cudnn needs an NVIDIA GPU, Ampere or newer, and this is cpu"),
        ("gpu", {"attention": "splash"}, "splash needs a TPU, and this is another GPU"),
        ("tpu", {"attention": "splash", "positions": "relative"}, "splash takes no bias"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused_in_one_line(platform, changes, reason):
    config = tiny.config(**{"positions": "rope"} | changes)
    refused = f"^model.attention='{config.attention}' must be 'auto' or 'xla' here: {reason}"
    with pytest.raises(ValueError, match=refused) as error:
        choose_attention(config, platform, length=512)
    assert "\n" not in str(error.value)
    batch = tiny.rows("encoder", [[1]], [[3]]) | tiny.rows("decoder", [[1]], [[4]])
    with pytest.raises(ValueError, match=refused), compiled_for(platform, on_one_device):
        jax.eval_shape(lambda params: apply(config, params, batch), shapes_of(config))


def test_splash_is_asked_of_each_device_with_the_names_of_its_dimensions():
    config = tiny.config(architecture="decoder_only", attention="splash", positions="rope")
    batch = tiny.rows("decoder", [[1, 1, 2]], [[3, 4, 5]]) | {"decoder_bidirectional_mask": jnp.zeros((1, 3), bool)}
    expected = []

    def over_devices(function, arguments, result):
        expected.append((*arguments, result))
        return function

    for has_prefix in (False, True):
        with compiled_for("tpu", over_devices):
            some = dataclasses.replace(config, has_prefix=has_prefix)
            jax.eval_shape(lambda params, some=some: apply(some, params, batch), shapes_of(config))
    assert expected == [
        ("BHQK", "BGSK", "BGSK", "BQ", "BS", "BHQK"),
        ("BHQK", "BGSK", "BGSK", "BQS", "BHQK"),
    ]
