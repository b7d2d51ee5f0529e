"""T5, BERT and Llama compared with a second implementation in NumPy: float64, one row, layer and head at a time."""

import math

import jax
import numpy as np
import pytest

from tests.models import tiny

ENCODER = [[1, 1, 1, 1, 2, 2, 2, 0, 0]]
DECODER = [[1, 1, 1, 2, 2, 2, 2, 0]]
ENCODER_TOKENS = [[7, 3, 9, 1, 12, 40, 1, 0, 0]]
DECODER_TOKENS = [[0, 5, 6, 0, 8, 9, 10, 0]]


def parameters(config):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tiny.params(config))


def layer(stack, n):
    return jax.tree.map(lambda x: x[n], stack["layers"])


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def rms(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def layer_norm(x, norm):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * norm["scale"] + norm["bias"]


def attention_mask(query_segments, key_segments, causal):
    return np.array(
        [
            [q == k != 0 and (not causal or j <= i) for j, k in enumerate(key_segments)]
            for i, q in enumerate(query_segments)
        ]
    )


def heads(x, kernel, bias=0.0):
    """[L, D] -> list of [L, 6], one for each head."""
    return np.split(x @ kernel + bias, kernel.shape[1] // 6, axis=1)


def attend(scores, values, mask):
    """Softmax of the scores over the unmasked keys, times the values; 0 where all keys are masked."""
    output = np.zeros((len(scores), values.shape[1]))
    for i, row in enumerate(mask):
        if row.any():
            weights = np.exp(scores[i, row] - scores[i, row].max())
            output[i] = weights / weights.sum() @ values[row]
    return output


# --- T5 v1.1 and v1.0 -----------------------------------------------------------------------------------------------


def t5_bucket(relative, bidirectional, num_buckets=8, max_distance=12):
    """Mesh TensorFlow's formula, with its logarithm."""
    offset = 0
    if bidirectional:
        num_buckets //= 2
        offset = num_buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = num_buckets // 2
    if distance < exact:
        return offset + distance
    wide = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return offset + min(exact + int(wide + 1e-9), num_buckets - 1)


def t5_attention(x, memory, p, mask, table=None, bidirectional=True):
    queries, keys, values = heads(x, p["query"]["kernel"]), *(heads(memory, p[n]["kernel"]) for n in ("key", "value"))
    outputs = []
    for h, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        bias = np.zeros((len(x), len(memory)))
        if table is not None:
            bias = np.array(
                [[table[h, t5_bucket(j - i, bidirectional)] for j in range(len(memory))] for i in range(len(x))]
            )
        outputs.append(attend(q @ k.T + bias, v, mask))
    return np.concatenate(outputs, axis=1) @ p["out"]["kernel"]


def t5_stack(x, stack, segments, memory=None, memory_segments=None):
    causal = memory is not None
    table = stack["relative_position_bias"]["embedding"]
    for n in range(2):
        p = layer(stack, n)
        h = rms(x, p["self_attention_norm"]["scale"])
        x = x + t5_attention(h, h, p["self_attention"], attention_mask(segments, segments, causal), table, not causal)
        if memory is not None:
            h = rms(x, p["cross_attention_norm"]["scale"])
            x = x + t5_attention(h, memory, p["cross_attention"], attention_mask(segments, memory_segments, False))
        h = rms(x, p["mlp_norm"]["scale"])
        mlp = p["mlp"]
        if "wi" in mlp:
            inner = np.maximum(h @ mlp["wi"]["kernel"], 0)
        else:
            inner = gelu(h @ mlp["wi_0"]["kernel"]) * (h @ mlp["wi_1"]["kernel"])
        x = x + inner @ mlp["wo"]["kernel"]
    return rms(x, stack["final_norm"]["scale"])


@pytest.mark.parametrize("version", ["v1.1", "v1.0"])
def test_t5(version):
    changes = {} if version == "v1.1" else dict(mlp="relu", tie_embeddings=True, scale_logits=True)
    config = tiny.config(num_kv_heads=4, **changes)
    p = parameters(config)
    embedding = p["token_embedder"]["embedding"]
    memory = t5_stack(embedding[ENCODER_TOKENS[0]], p["encoder"], ENCODER[0])
    hidden = t5_stack(embedding[DECODER_TOKENS[0]], p["decoder"], DECODER[0], memory, ENCODER[0])
    expected = hidden @ embedding.T / math.sqrt(16) if version == "v1.0" else hidden @ p["logits_dense"]["kernel"]

    batch = tiny.rows("encoder", ENCODER, ENCODER_TOKENS) | tiny.rows("decoder", DECODER, DECODER_TOKENS)
    np.testing.assert_allclose(tiny.run(config, tiny.params(config), batch)[0], expected, atol=2e-5, rtol=2e-5)


# --- BERT -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedding_size", [0, 10])
def test_bert_with_sentence_types(embedding_size):
    config = tiny.config(
        architecture="encoder_only", num_kv_heads=4, mlp="gelu", positions="learned", norm="layer",
        norm_position="post", use_bias=True, tie_embeddings=True, scale_attention=True, embedding_norm=True,
        prediction_head="bert", initializer="normal", num_token_types=2, embedding_size=embedding_size,
    )  # fmt: skip
    p, types = parameters(config), [0, 0, 1, 1, 0, 1, 1, 0, 0]
    position = [0, 1, 2, 3, 0, 1, 2, 0, 0]
    embedding = p["token_embedder"]["embedding"]
    x = embedding[ENCODER_TOKENS[0]] + p["position_embedder"]["embedding"][position]
    x = layer_norm(x + p["token_type_embedder"]["embedding"][types], p["embedding_norm"])
    dense = lambda x, p: x @ p["kernel"] + p["bias"]  # noqa: E731
    if embedding_size:
        assert embedding.shape == (50, 10)
        x = dense(x, p["input_projection"])
    for n in range(2):
        block = layer(p["encoder"], n)
        attention = block["self_attention"]
        q, k, v = (heads(x, attention[name]["kernel"], attention[name]["bias"]) for name in ("query", "key", "value"))
        mask = attention_mask(ENCODER[0], ENCODER[0], causal=False)
        outputs = [attend(q[h] @ k[h].T / math.sqrt(6), v[h], mask) for h in range(4)]
        x = layer_norm(x + dense(np.concatenate(outputs, axis=1), attention["out"]), block["self_attention_norm"])
        x = layer_norm(x + dense(gelu(dense(x, block["mlp"]["wi"])), block["mlp"]["wo"]), block["mlp_norm"])
    head = p["prediction_head"]
    expected = layer_norm(gelu(dense(x, head["dense"])), head["norm"]) @ embedding.T + head["bias"]

    batch = tiny.rows("encoder", ENCODER, ENCODER_TOKENS) | {"encoder_token_types": np.array([types], np.int32)}
    np.testing.assert_allclose(tiny.run(config, tiny.params(config), batch)[0], expected, atol=2e-5, rtol=2e-5)


# --- Llama ----------------------------------------------------------------------------------------------------------


def rotated(x, positions):
    """Rotary embeddings: features (i, i + 3) as one complex number, times exp(1j * angle)."""
    angles = np.array(positions)[:, None] * 100.0 ** (-np.arange(3) / 3)
    z = (x[:, :3] + 1j * x[:, 3:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=1)


def test_llama_with_grouped_queries():
    config = tiny.config(
        architecture="decoder_only", mlp="gated_silu", positions="rope", scale_attention=True, initializer="normal"
    )
    p, position = parameters(config), [0, 1, 2, 0, 1, 2, 3, 0]
    x = p["token_embedder"]["embedding"][DECODER_TOKENS[0]]
    for n in range(2):
        block = layer(p["decoder"], n)
        h, attention = rms(x, block["self_attention_norm"]["scale"]), block["self_attention"]
        q, k = ([rotated(y, position) for y in heads(h, attention[name]["kernel"])] for name in ("query", "key"))
        v, mask = heads(h, attention["value"]["kernel"]), attention_mask(DECODER[0], DECODER[0], causal=True)
        assert (len(q), len(k), len(v)) == (4, 2, 2)
        outputs = [attend(q[i] @ k[i // 2].T / math.sqrt(6), v[i // 2], mask) for i in range(4)]
        x = x + np.concatenate(outputs, axis=1) @ attention["out"]["kernel"]
        h, mlp = rms(x, block["mlp_norm"]["scale"]), block["mlp"]
        x = x + (silu(h @ mlp["wi_0"]["kernel"]) * (h @ mlp["wi_1"]["kernel"])) @ mlp["wo"]["kernel"]
    expected = rms(x, p["decoder"]["final_norm"]["scale"]) @ p["logits_dense"]["kernel"]

    batch = tiny.rows("decoder", DECODER, DECODER_TOKENS)
    batch["decoder_bidirectional_mask"] = np.zeros((1, 8), bool)
    np.testing.assert_allclose(tiny.run(config, tiny.params(config), batch)[0], expected, atol=2e-5, rtol=2e-5)
