"""Model FLOPs: computed by hand, and compared with XLA's count. Learners' FLOPs: tests/learners/test_flops.py."""

import jax
import jax.numpy as jnp
import pytest

from models.flops import hidden_flops, logits_flops
from models.transformer import apply
from tests.models import tiny

LENGTH = 40


def test_flops_of_a_decoder_by_hand():
    """2 layers of D 16, F 20 in three matrices, 4 query heads and 2 key/value heads of 6; rows of 40; V 50."""
    config = tiny.config(architecture="decoder_only")
    query_and_out, key_and_value = 2 * (2 * 40 * 16 * 24), 2 * (2 * 40 * 16 * 12)
    scores_and_sums = 2 * (2 * 40 * 40 * 24)
    mlp = 3 * (2 * 40 * 16 * 20)
    expected = 2 * (query_and_out + key_and_value + scores_and_sums + mlp)
    assert hidden_flops(config, LENGTH, targets_length=7) == expected  # without a decoder of its own
    assert logits_flops(config, 7) == 2 * 7 * 16 * 50


def test_flops_are_close_to_xlas_count():
    """The forward pass of an encoder-decoder. One layer in each stack: XLA counts a loop's body once.

    XLA also counts elementwise operations; a large d_model keeps their share small.
    """
    config = tiny.config(num_layers=1, d_model=256)
    segments = jnp.ones((2, LENGTH), jnp.int32)
    batch = tiny.rows("encoder", segments.tolist(), segments) | tiny.rows("decoder", segments.tolist(), segments)
    counted = jax.jit(lambda params: apply(config, params, batch)).lower(tiny.params(config)).cost_analysis()["flops"]
    per_row = hidden_flops(config, LENGTH, LENGTH) + logits_flops(config, LENGTH)
    assert 2 * per_row == pytest.approx(counted, rel=0.1) and 2 * per_row < counted
