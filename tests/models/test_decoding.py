"""Decoding with a cache gives the logits of a single pass over the whole row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import decoding
from tests.models import tiny

LENGTH, PROMPT = 9, 4
TOKENS = [[4, 5, 6, 7, 8, 9, 10, 11, 12], [21, 22, 23, 24, 25, 26, 27, 28, 29]]
ENCODER = tiny.rows("encoder", [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], [[31, 32, 33, 34, 1], [35, 36, 1, 0, 0]])

init_cache = jax.jit(decoding.init_cache, static_argnums=(0, 3))
prefill = jax.jit(decoding.prefill, static_argnums=0)
decode_step = jax.jit(decoding.decode_step, static_argnums=0)


def whole_rows(architecture, prefix):
    """Two rows. For a decoder-only model the second row is two tokens shorter, padded at the start."""
    segments = [[1] * LENGTH, [1] * LENGTH]
    if architecture == "decoder_only":
        segments[1] = [0, 0] + [1] * (LENGTH - 2)
    batch = tiny.rows("decoder", segments, TOKENS)
    mask = (jnp.arange(LENGTH) < PROMPT) & (batch["decoder_segment_ids"] > 0) & prefix
    return ENCODER | batch | {"decoder_bidirectional_mask": mask}


def decode(config, params, batch, cache_length=LENGTH):
    """Logits [B, LENGTH - PROMPT + 1, V] after the prompt and after each later token of the row; and the cache."""
    prompt = {name: x[:, :PROMPT] if name.startswith("decoder") else x for name, x in batch.items()}
    cache = init_cache(config, params, prompt, cache_length)
    logits, cache = prefill(config, params, prompt, cache)
    all_logits = [logits]
    for t in range(PROMPT, LENGTH):
        logits, cache = decode_step(config, params, batch["decoder_input_tokens"][:, t], cache)
        all_logits.append(logits)
    return jnp.stack(all_logits, axis=1), cache


@pytest.mark.parametrize(
    "architecture, prefix, positions",
    [
        ("encoder_decoder", False, "relative"),
        ("decoder_only", False, "relative"),
        ("decoder_only", True, "relative"),
        ("decoder_only", True, "rope"),
        ("decoder_only", False, "learned"),
    ],
)
def test_logits_with_a_cache_equal_those_of_one_pass(architecture, prefix, positions):
    check_logits(tiny.config(architecture=architecture, positions=positions), architecture, prefix)


def test_gpt_neox_decodes_with_a_cache():
    fields = dict(parallel_residual=True, partial_rotary_factor=0.4, qkv_bias=True, rope_scaling_factor=4.0)
    config = tiny.config(architecture="decoder_only", positions="rope", rope_original_length=5, **fields)
    assert config.rotary_features == 2
    check_logits(config, "decoder_only", prefix=False)


def test_stacks_of_different_depths_decode_with_a_cache():
    check_logits(tiny.config(num_layers=1, num_decoder_layers=3), "encoder_decoder", prefix=False)


def test_shared_stacks_decode_with_a_cache():
    check_logits(tiny.config(share_stacks=True), "encoder_decoder", prefix=False)


def check_logits(config, architecture, prefix):
    params, batch = tiny.params(config), whole_rows(architecture, prefix)
    expected = tiny.run(config, params, batch)[:, PROMPT - 1 :]
    logits, _ = decode(config, params, batch)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)


def test_unused_capacity_and_padding_before_the_prompt_change_nothing():
    config = tiny.config(architecture="decoder_only")
    params, batch = tiny.params(config), whole_rows("decoder_only", True)
    logits, _ = decode(config, params, batch, cache_length=LENGTH + 4)
    alone = {name: x[1:, 2:] for name, x in batch.items() if name.startswith("decoder")}
    np.testing.assert_allclose(logits[1], tiny.run(config, params, alone)[0, PROMPT - 3 :], atol=2e-5, rtol=2e-5)


def test_a_step_beyond_the_capacity_gives_nan():
    config = tiny.config(architecture="decoder_only")
    params = tiny.params(config)
    logits, cache = decode(config, params, whole_rows("decoder_only", False))
    assert np.isfinite(logits).all()
    assert np.isnan(decode_step(config, params, jnp.asarray([1, 1]), cache)[0]).all()
