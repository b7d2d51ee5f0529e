"""Fields of today's encoders and decoders: local attention, the first norm, QK-norm, soft-caps, a bias of the logits.

The whole models are compared with a NumPy implementation in float64, one row and head at a time.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from configs import mlm
from experiment.experiment import make_experiment
from models.attention import dot_product_attention
from models.config import ModelConfig
from models.multi_token import bind_heads, init_heads
from models.transformer import apply, bind
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.models.test_against_numpy import attend, attention_mask, heads, layer, layer_norm, parameters
from tests.models.test_attention import attention_inputs
from tests.models.test_decoding import LENGTH, PROMPT, check_logits, decode_step, init_cache, prefill, whole_rows
from tests.table import random_windows

MODERN_BERT = dict(
    architecture="encoder_only", num_layers=4, num_kv_heads=4, positions="rope", norm="layer", tie_embeddings=True,
    mlp="gated_exact_gelu", scale_attention=True, embedding_norm=True, prediction_head="bert", initializer="normal",
    global_every=3, local_distance=1, local_rope_theta=30.0, first_attention_norm=False, logits_bias=True,
)  # fmt: skip
SEGMENTS = [1, 1, 1, 1, 2, 2, 2, 0]
POSITIONS = [0, 1, 2, 3, 0, 1, 2, 0]
TOKENS = [7, 3, 9, 1, 12, 40, 1, 0]
BATCH = tiny.rows("encoder", [SEGMENTS], [TOKENS])
NEAR = np.abs(np.subtract.outer(POSITIONS, POSITIONS)) <= 1


def rotated(x, theta):
    angles = np.array(POSITIONS)[:, None] * theta ** (-np.arange(3) / 3)
    z = (x[:, :3] + 1j * x[:, 3:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=1)


def exact_gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def norm(x, p):
    return layer_norm(x, p | {"bias": 0.0})


def capped(x, cap):
    return cap * np.tanh(x / cap)


def test_modern_bert():
    """Layers 0 and 3 attend to the whole text with one base of wavelengths, 1 and 2 to neighbours with another."""
    config = tiny.config(**MODERN_BERT, qk_norm=True, attention_softcap=0.3, logits_softcap=0.7)
    p, mask = parameters(config), attention_mask(SEGMENTS, SEGMENTS, causal=False)
    embedding = p["token_embedder"]["embedding"]
    x = norm(embedding[TOKENS], p["embedding_norm"])
    for n in range(4):
        block, is_global = layer(p["encoder"], n), n in (0, 3)
        h, attention = x if n == 0 else norm(x, block["self_attention_norm"]), block["self_attention"]
        theta, visible = (100.0, mask) if is_global else (30.0, mask & NEAR)
        q, k, v = (heads(h, attention[name]["kernel"]) for name in ("query", "key", "value"))
        q, k = ([norm(y, attention[f"{name}_norm"]) for y in z] for name, z in (("query", q), ("key", k)))
        q, k = ([rotated(y, theta) for y in z] for z in (q, k))
        scores = [capped(q[h] @ k[h].T / np.sqrt(6), config.attention_softcap) for h in range(4)]
        outputs = [attend(scores[h], v[h], visible) for h in range(4)]
        x = x + np.concatenate(outputs, axis=1) @ attention["out"]["kernel"]
        h, mlp = norm(x, block["mlp_norm"]), block["mlp"]
        x = x + (exact_gelu(h @ mlp["wi_0"]["kernel"]) * (h @ mlp["wi_1"]["kernel"])) @ mlp["wo"]["kernel"]
    head = p["prediction_head"]
    x = norm(exact_gelu(norm(x, p["encoder"]["final_norm"]) @ head["dense"]["kernel"]), head["norm"])
    expected = capped(x @ embedding.T + head["bias"], config.logits_softcap)
    np.testing.assert_allclose(tiny.run(config, tiny.params(config), BATCH)[0], expected, atol=2e-5, rtol=2e-5)


def test_the_mask_of_a_local_layer_by_hand():
    config = tiny.config(**MODERN_BERT)
    context = bind(config, tiny.params(config)).encoder.attention_context(
        BATCH["encoder_positions"], BATCH["encoder_segment_ids"], BATCH["encoder_segment_ids"]
    )
    near = [context.of_layer(config, n).attention_fn.keywords["near_Bx1xQxS"][0, 0] for n in range(4)]
    mask = np.asarray(context.attention_fn.keywords["mask_Bx1xQxS"][0, 0])
    assert near[0].all() and near[3].all()
    for n in (1, 2):
        assert (mask & near[n]).astype(int).tolist() == [
            [1, 1, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0, 0, 0],
            [0, 1, 1, 1, 0, 0, 0, 0],
            [0, 0, 1, 1, 0, 0, 0, 0],
            [0, 0, 0, 0, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 1, 1, 0],
            [0, 0, 0, 0, 0, 1, 1, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
        ]


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_a_token_reaches_no_further_than_the_local_layers_carry_it(architecture):
    """The only global layer adds nothing, so a token reaches as many positions as there are local layers."""
    config = tiny.config(architecture=architecture, num_layers=3, global_every=3, local_distance=1)
    side = "encoder" if architecture == "encoder_only" else "decoder"
    params = jax.tree.map(jnp.asarray, tiny.params(config))
    out = params[side]["layers"]["self_attention"]["out"]
    out["kernel"] = out["kernel"].at[0].set(0)
    tokens = np.arange(8) + 3
    batch = tiny.rows(side, [SEGMENTS], [tokens]) | {"decoder_bidirectional_mask": jnp.zeros((1, 8), bool)}

    def logit_sums(table):
        return apply(config, {**params, "token_embedder": {"embedding": table}}, batch)[0].sum(-1)

    jacobian = np.abs(jax.jit(jax.jacrev(logit_sums))(params["token_embedder"]["embedding"])).sum(-1)
    reached = np.abs(np.subtract.outer(POSITIONS, POSITIONS)) <= 2
    reached &= np.equal.outer(SEGMENTS, SEGMENTS)
    np.testing.assert_array_equal(jacobian[:, tokens] != 0, np.tril(reached) if side == "decoder" else reached)


@pytest.mark.parametrize("positions", ["rope", "relative"])
def test_a_distance_beyond_the_row_is_a_model_without_local_layers(positions):
    config = tiny.config(architecture="encoder_only", positions=positions)
    local = tiny.config(
        architecture="encoder_only", positions=positions, global_every=2, local_distance=8, local_rope_theta=100.0
    )
    plain = tiny.run(config, tiny.params(config), BATCH)
    np.testing.assert_allclose(tiny.run(local, tiny.params(config), BATCH), plain, atol=1e-6)
    nearer = tiny.config(architecture="encoder_only", positions=positions, global_every=2, local_distance=1)
    assert np.abs(tiny.run(nearer, tiny.params(config), BATCH) - plain).max() > 1e-3


def test_cross_attention_has_normed_queries_and_keys_and_no_local_layers():
    config = tiny.config(qk_norm=True, global_every=2, local_distance=0)
    params = tiny.params(config)
    batch = BATCH | tiny.rows("decoder", [[1, 1, 2]], [[5, 6, 7]])
    changed = batch | {"encoder_input_tokens": batch["encoder_input_tokens"].at[0, 3].add(1)}
    logits, others = (tiny.run(config, params, b) for b in (batch, changed))
    assert (logits[0, :2] != others[0, :2]).any(-1).all() and (logits[0, 2] == others[0, 2]).all()
    doubled = jax.tree.map(jnp.asarray, params)
    for name in ("query", "key"):
        doubled["decoder"]["layers"]["cross_attention"][name]["kernel"] *= 2.0
    np.testing.assert_allclose(tiny.run(config, doubled, batch), logits, atol=1e-4)


@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
def test_the_gradients_of_soft_capped_attention(dropout_rate):
    """Those of autodiff, for a cap that bends the scores much."""
    query, keys_values, visible, bias = attention_inputs()
    weight = np.random.default_rng(1).standard_normal(query.shape).astype(np.float32)
    options = dict(scale=0.5, cap=0.8, dropout_rate=dropout_rate, dropout_key=jax.random.key(0))

    @jax.jit
    def loss(query, keys_values, bias):
        output = dot_product_attention(query, keys_values, mask_Bx1xQxS=visible, bias_1xHxQxS=bias, **options)
        return (weight * output).sum()

    @jax.jit
    def plain(query, keys_values, bias):
        keys, values = (jnp.repeat(x, 2, axis=1) for x in keys_values)
        scores = 0.8 * jnp.tanh(0.5 * jnp.einsum("BHQK,BHSK->BHQS", query, keys) / 0.8) + bias
        probabilities = jnp.where(visible.any(-1, keepdims=True), jax.nn.softmax(scores, -1, where=visible), 0)
        return (weight * jnp.einsum("BHQS,BHSK->BHQK", probabilities, values)).sum()

    arguments = query, keys_values, bias
    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arguments)
    if not dropout_rate:
        expected = jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(*arguments)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)
        np.testing.assert_allclose(loss(*arguments), plain(*arguments), rtol=1e-5)
    direction = jax.tree.map(lambda x: np.random.default_rng(2).standard_normal(x.shape).astype(np.float32), arguments)
    moved = [loss(*jax.tree.map(lambda x, d: x + h * d, arguments, direction)) for h in (1e-2, -1e-2)]  # noqa: B023
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), found, direction)))
    np.testing.assert_allclose((moved[0] - moved[1]) / 2e-2, slope, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("architecture", "positions"), [("decoder_only", "rope"), ("encoder_decoder", "relative")])
def test_decoding_with_a_cache(architecture, positions):
    fields = dict(qk_norm=True, attention_softcap=0.5, logits_softcap=0.7, global_every=2, local_distance=2)
    config = tiny.config(architecture=architecture, positions=positions, first_attention_norm=False, **fields)
    check_logits(config, architecture, prefix=architecture == "decoder_only")


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_gemma_decodes_with_a_cache(architecture):
    fields = dict(sandwich_norm=True, scale_embeddings=True, global_every=2, local_distance=2, first_layer_global=False)
    fields["share_embeddings"] = architecture == "decoder_only"
    config = tiny.config(architecture=architecture, positions="rope", tie_embeddings=True, **fields)
    check_logits(config, architecture, prefix=False)


def test_the_last_of_every_n_layers_is_global():
    config = tiny.config(architecture="decoder_only", num_layers=7, global_every=3, first_layer_global=False)
    assert [config.is_global(layer) for layer in range(7)] == [False, False, True] * 2 + [False]
    first = dataclasses.replace(config, first_layer_global=True)
    assert [first.is_global(layer) for layer in range(7)] == [True, False, False] * 2 + [True]


def test_a_cache_has_the_positions_of_its_keys():
    """The tokens of a blank follow the text and have its positions (GLM): neighbours by position are not those here."""
    config = tiny.config(architecture="decoder_only", positions="rope", global_every=2, local_distance=1)
    batch = whole_rows("decoder_only", prefix=True)
    batch["decoder_positions"] = jnp.asarray([[0, 1, 2, 3, 1, 2, 3, 4, 5], [0, 0, 0, 1, 0, 1, 2, 3, 4]])
    params = tiny.params(config)
    prompt = {name: x[:, : PROMPT + 1] for name, x in batch.items() if name.startswith("decoder")}
    cache = init_cache(config, params, prompt, LENGTH)
    logits, cache = prefill(config, params, prompt, cache)
    expected = tiny.run(config, params, batch)[:, PROMPT:]
    found = [logits]
    for token in batch["decoder_input_tokens"][:, PROMPT + 1 :].T:
        logits, cache = decode_step(config, params, token, cache)
        found.append(logits)
    np.testing.assert_allclose(jnp.stack(found, axis=1), expected, atol=2e-5, rtol=2e-5)


def test_heads_of_further_tokens_read_the_states_of_the_model():
    config = tiny.config(architecture="decoder_only", num_layers=3, global_every=2, local_distance=1)
    batch = tiny.rows("decoder", [SEGMENTS], [TOKENS]) | {"decoder_bidirectional_mask": jnp.zeros((1, 8), bool)}

    def states(params):
        transformer = bind(config, params)
        heads_of_two = bind_heads(config, "independent", 2, init_heads(config, "independent", 2, jax.random.key(1)))
        return heads_of_two(transformer, batch)[0], transformer.hidden(batch)

    of_first_head, of_model = jax.jit(states)(tiny.params(config))
    np.testing.assert_allclose(of_first_head, of_model, atol=1e-5)


def test_the_loss_in_chunks_has_the_soft_cap_and_the_bias():
    def with_loss(transform, **changes):
        config = mlm.get_config()
        config.model.update(num_layers=1, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=16)
        config.model.update(use_bias=False, logits_bias=True, logits_softcap=0.5)
        config.data.update(inputs_length=24)
        config.objective.mask_rate = 0.9  # so that the loss is over all positions
        config.train.batch_size = 2
        config.update(changes)
        experiment = make_experiment(config)
        batch = experiment.collate(random_windows(experiment, 2, same_keys=False), 2)
        learner = experiment.learner
        params = params_of(learner)
        bias = np.random.default_rng(0).standard_normal(params["transformer"]["prediction_head"]["bias"].shape)
        params["transformer"]["prediction_head"]["bias"] = jnp.asarray(bias, jnp.float32)

        def loss(params):
            return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(1), train=True)[0]

        return jax.jit(transform(loss))(params)

    whole, chunked = (with_loss(jax.value_and_grad, loss=dict(chunk_size=size)) for size in (0, 5))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), chunked, whole)
    assert np.abs(whole[1]["transformer"]["prediction_head"]["bias"]).max() > 0
    uncapped = with_loss(lambda loss: loss, model=dict(logits_softcap=0.0))
    assert abs(uncapped - whole[0]) > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(first_attention_norm=False, norm_position="post"), "model.first_attention_norm=False needs"),
        (dict(sandwich_norm=True, norm_position="post"), "model.sandwich_norm=True needs model.norm_position='pre'"),
        (dict(logits_bias=True), "model.logits_bias=True needs model.prediction_head='bert'"),
        (dict(qk_norm=True, head_norms="qkv"), "model.head_norms='qkv' has norms of queries and keys: set model.qk_"),
        (
            dict(global_every=3, target_positions=True, positions="rope"),
            "model.global_every=3 must be 1 for model.target_positions=True",
        ),
    ],
)
def test_fields_that_contradict_others_are_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        tiny.config(**changes)
    assert "\n" not in str(error.value)


def test_a_model_that_names_none_of_these_fields_has_none_of_them():
    new = ("global_every", "first_attention_norm", "qk_norm", "attention_softcap", "logits_softcap", "logits_bias")
    new += ("sandwich_norm", "scale_embeddings", "share_embeddings", "first_layer_global", "head_norms")
    older = ModelConfig(**{name: value for name, value in tiny.FIELDS.items() if name not in new})
    assert not older.layers_differ and older == tiny.config()
