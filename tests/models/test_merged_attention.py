"""Merged attention (T5Gemma 2) and continuous positions (RedLLM), compared with NumPy.

Merged attention is one softmax over the keys of the decoder's row and of the encoder's. Continuous positions count on
from the encoder's row, in cross-attention too.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.flops import hidden_flops
from models.kernels import choose_attention
from models.transformer import apply, bind
from tests.models import tiny
from tests.models.test_against_numpy import (
    DECODER,
    DECODER_TOKENS,
    ENCODER,
    ENCODER_TOKENS,
    attend,
    attention_mask,
    layer,
    parameters,
    rms,
    rotated,
    silu,
    t5_bucket,
)
from tests.models.test_against_numpy import heads as heads_without_norms
from tests.models.test_decoding import check_logits

FIELDS = dict(
    merged_attention=True, tie_embeddings=True, mlp="gated_silu", positions="rope", scale_attention=True,
    initializer="normal",
)  # fmt: skip
BATCH = tiny.rows("encoder", ENCODER, ENCODER_TOKENS) | tiny.rows("decoder", DECODER, DECODER_TOKENS)
# Of the rows of test_against_numpy: of the encoder, and of the decoder, whose segments follow 4 and 3 tokens.
POSITIONS = [0, 1, 2, 3, 0, 1, 2, 0, 0]
OWN, CONTINUED = [0, 1, 2, 0, 1, 2, 3, 0], [4, 5, 6, 3, 4, 5, 6, 0]
REDLLM = dict(merged_attention=False, continuous_positions=True)
NORMED = REDLLM | {"head_norms": "qkvo"}
LOCAL = dict(global_every=2, local_distance=1, local_rope_theta=100.0)


def rotate(sides, positions, config):
    return [[rotated(y, positions) for y in side] for side in sides] if config.positions == "rope" else sides


def heads(x, kernel, norms="none"):
    return [y if norms == "none" else rms(y, 1.0) for y in heads_without_norms(x, kernel)]


def attention_output(q, k, v, mask, bias, attention, norms):
    outputs = [attend(q[i] @ k[i // 2].T / math.sqrt(6) + bias[i], v[i // 2], mask) for i in range(4)]
    outputs = [rms(x, 1.0) for x in outputs] if norms == "qkvo" else outputs
    return np.concatenate(outputs, axis=1) @ attention["out"]["kernel"]


def stack(x, p, segments, config, memory=None):
    """Llama's blocks in NumPy, one head at a time. memory: the encoder's final states."""
    norms = config.head_norms
    positions = POSITIONS if memory is None else CONTINUED if config.continuous_positions else OWN
    causal, bias = memory is not None, np.zeros((4, len(x), len(x)))
    if config.positions == "relative":
        buckets = [[t5_bucket(j - i, not causal) for j in range(len(x))] for i in range(len(x))]
        bias = p["relative_position_bias"]["embedding"][:, buckets]
    for n in range(2):
        block = layer(p, n)
        h, attention = rms(x, block["self_attention_norm"]["scale"]), block["self_attention"]
        q, k, v = (heads(h, attention[name]["kernel"], norms) for name in ("query", "key", "value"))
        q, k = rotate((q, k), positions, config)
        mask = attention_mask(segments, segments, causal)
        if n % config.global_every:
            mask &= np.abs(np.subtract.outer(positions, positions)) <= config.local_distance
        if causal:
            source = attention if config.merged_attention else block["cross_attention"]
            keys, values = (heads(memory, source[name]["kernel"], norms) for name in ("key", "value"))
            of_encoder = attention_mask(segments, ENCODER[0], causal=False)
            none = np.zeros((4, len(x), len(memory)))
            if config.continuous_positions:
                (keys,) = rotate((keys,), POSITIONS, config)
        if causal and config.merged_attention:
            k, v = ([np.concatenate(pair) for pair in zip(a, b, strict=True)] for a, b in ((k, keys), (v, values)))
            mask = np.concatenate([mask, of_encoder], axis=1)
            x = x + attention_output(q, k, v, mask, np.concatenate([bias, none], axis=2), attention, norms)
        else:
            x = x + attention_output(q, k, v, mask, bias, attention, norms)
        if causal and not config.merged_attention:
            q = heads(rms(x, block["cross_attention_norm"]["scale"]), source["query"]["kernel"], norms)
            if config.continuous_positions:
                (q,) = rotate((q,), positions, config)
            x = x + attention_output(q, keys, values, of_encoder, none, source, norms)
        h, mlp = rms(x, block["mlp_norm"]["scale"]), block["mlp"]
        x = x + (silu(h @ mlp["wi_0"]["kernel"]) * (h @ mlp["wi_1"]["kernel"])) @ mlp["wo"]["kernel"]
    return rms(x, p["final_norm"]["scale"])


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative"},
        LOCAL,
        {"continuous_positions": True},
        {"merged_attention": False},
        NORMED,
        {"head_norms": "qkv"},
    ],
)
def test_logits_equal_those_of_numpy(changes):
    config = tiny.config(**FIELDS | changes)
    p = parameters(config)
    table = p["token_embedder"]["embedding"]
    memory = stack(table[ENCODER_TOKENS[0]], p["encoder"], ENCODER[0], config)
    hidden = stack(table[DECODER_TOKENS[0]], p["decoder"], DECODER[0], config, memory)
    logits = tiny.run(config, tiny.params(config), BATCH)[0]
    np.testing.assert_allclose(logits, hidden @ table.T, atol=2e-5, rtol=2e-5)
    changed = BATCH | {"encoder_input_tokens": BATCH["encoder_input_tokens"] + 1}
    difference = np.abs(tiny.run(config, tiny.params(config), changed)[0] - logits).max(-1)
    assert difference[:7].min() > 1e-3 and difference[7] == 0  # all tokens read the encoder; padding does not


def test_the_parameters_are_those_of_two_stacks_without_cross_attention_and_one_table():
    merged, separate = (tiny.shapes(tiny.config(**FIELDS | {"merged_attention": x})) for x in (True, False))
    assert merged == {path: shape for path, shape in separate.items() if "cross_attention" not in path}
    assert [path for path, shape in merged.items() if 50 in shape] == ["token_embedder/embedding"]


def test_without_an_encoders_row_the_logits_are_those_of_the_decoder():
    merged = tiny.config(**FIELDS)
    alone = tiny.config(**FIELDS | {"merged_attention": False, "architecture": "decoder_only"}, has_prefix=False)
    params = tiny.params(merged)
    of_decoder = {name: value for name, value in params.items() if name != "encoder"}
    padding = tiny.rows("encoder", [[0] * 9], [[0] * 9])
    logits, expected = tiny.run(merged, params, BATCH | padding), tiny.run(alone, of_decoder, BATCH)
    np.testing.assert_allclose(logits, expected, atol=1e-6)  # two programs, which a processor may round differently


PAIR = tiny.rows("encoder", [[1] * 5], [[7, 3, 9, 12, 1]]) | tiny.rows("decoder", [[1] * 4], [[20, 5, 6, 8]])
JOINED = tiny.rows("decoder", [[1] * 9], [[7, 3, 9, 12, 1, 20, 5, 6, 8]]) | {
    "decoder_bidirectional_mask": jnp.arange(9)[None] < 5
}


@pytest.mark.parametrize("changes", [{"positions": "none"}, {"continuous_positions": True}])
def test_with_shared_layers_that_read_the_encoder_layer_by_layer_it_is_a_prefix_lm(changes):
    """And is not where every layer reads the encoder's final states, as in T5Gemma 2."""
    config = tiny.config(**FIELDS | changes, share_stacks=True)
    params = tiny.params(config)
    ids = PAIR["encoder_segment_ids"]

    @jax.jit  # the layers in Python, in one program
    def layer_by_layer(params):
        model = bind(config, params)
        x, y = (model.embed(PAIR[f"{s}_input_tokens"], PAIR[f"{s}_positions"], stack=s) for s in ("encoder", "decoder"))
        of_encoder = model.encoder.attention_context(PAIR["encoder_positions"], ids, ids)
        of_decoder = model.decoder_attention(PAIR)
        graphdef, layers = nnx.split(model.decoder.layers)
        for n in range(2):
            block = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[n], layers))  # noqa: B023
            keys_values = block.encoder_keys_values(block.self_attention_norm(x), of_decoder.encoder_rotation)
            y, _ = block(y, of_decoder, cross=keys_values)
            x, _ = block(x, of_encoder)
        return model.logits(model.decoder.final_norm(y))

    of_prefix_lm = FIELDS | {"merged_attention": False, "architecture": "decoder_only", "positions": config.positions}
    expected = tiny.run(tiny.config(**of_prefix_lm), {k: v for k, v in params.items() if k != "encoder"}, JOINED)[:, 5:]
    np.testing.assert_allclose(layer_by_layer(params), expected, atol=1e-5)
    assert np.abs(tiny.run(config, params, PAIR) - expected).max() > 1e-2


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative", "qk_norm": True},
        LOCAL | {"share_stacks": True},
        {"continuous_positions": True},
        REDLLM | {"share_stacks": True},
        NORMED,
    ],
)
def test_logits_with_a_cache_equal_those_of_one_pass(changes):
    check_logits(tiny.config(**FIELDS | changes), "encoder_decoder", prefix=False)


def test_gradients_of_both_texts_reach_the_shared_projections():
    config = tiny.config(**FIELDS)

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        return jnp.square(apply(config, params, batch)).sum()

    without = BATCH | {"encoder_segment_ids": jnp.zeros_like(BATCH["encoder_segment_ids"])}
    gradients = [gradient(tiny.params(config), batch)["decoder"]["layers"] for batch in (BATCH, without)]
    for name in ("key", "value"):
        both, own = (layers["self_attention"][name]["kernel"] for layers in gradients)
        assert (np.abs(both - own).max((1, 2)) > 1e-3).all() and np.abs(own).max() > 1e-3


def test_flops_by_hand():
    """Merged attention has one query and one output projection; keys and values of both texts."""
    merged, separate = (tiny.config(**FIELDS | {"merged_attention": x}) for x in (True, False))
    layers, queries, width, d_model = 2, 8, 24, 16
    saved = layers * 2 * (2 * queries * d_model * width)
    assert hidden_flops(separate, 9, 8) - hidden_flops(merged, 9, 8) == saved
    kv_width, mlp = 12, 3 * 2 * d_model * 20
    encoder = 9 * (2 * 2 * d_model * (width + kv_width) + mlp) + 4 * 9 * 9 * width
    decoder = 8 * (2 * 2 * d_model * width + mlp) + (8 + 9) * 2 * 2 * d_model * kv_width + 4 * 8 * (8 + 9) * width
    assert hidden_flops(merged, 9, 8) == layers * (encoder + decoder)


@pytest.mark.parametrize(
    ("platform", "attention", "kernel", "reason"),
    [
        (
            "tpu",
            "auto",
            "flash",
            "splash has no mask for keys of two texts, and model.merged_attention=True",
        ),
        ("cuda", "auto", "cudnn", "supports this model"),
        ("tpu", "xla", "xla", "model.attention='xla'"),
    ],
)
def test_the_kernel_of_a_model_with_merged_attention(platform, attention, kernel, reason):
    config = tiny.config(**FIELDS | {"attention": attention, "dtype": "bfloat16", "head_dim": 64})
    assert choose_attention(config, platform, length=512) == (kernel, reason)


def test_splash_is_refused_by_name():
    config = tiny.config(**FIELDS, attention="splash")
    message = "model.attention='splash' must be 'auto' or 'xla': splash has no mask for keys of two texts, and"
    with pytest.raises(ValueError, match=message):
        choose_attention(config, "tpu", length=512)


@pytest.mark.parametrize("changes", [{"positions": "learned"}, {"positions": "rope", "global_every": 2}])
def test_continuous_positions_are_rotary_in_all_layers_alike(changes):
    with pytest.raises(ValueError, match=r"continuous_positions=True needs model.positions='rope', not"):
        tiny.config(continuous_positions=True, **changes)
