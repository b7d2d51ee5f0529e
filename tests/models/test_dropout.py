"""Dropout of whole models: which elements share a draw, at every place where a model drops elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import architectures
from configs.base import get_config
from models.config import ModelConfig
from models.transformer import apply, bind
from tests.models import tiny

BATCH = tiny.rows("encoder", [[1, 1, 1, 1, 1]], [[3] * 5]) | tiny.rows("decoder", [[1, 1, 1, 1, 1]], [[3] * 5])
BATCH["decoder_bidirectional_mask"] = jnp.zeros((1, 5), bool)
SHAPES = {
    "T5 v1.1": (architectures.T5_V1_1["base"], False),
    "BERT": (architectures.BERT["base"], True),
    "BART": (architectures.BART["base"], True),
    "GPT-2": (architectures.GPT2["small"], True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_draws_of_a_published_model_are_per_element_except_in_t5(name, monkeypatch):
    """The dropout masks of attention are [B, G, R, Q or 1, S], all others [B, L or 1, features]."""
    shape, per_element = SHAPES[name]
    fields = get_config().model.to_dict() | shape
    fields |= {field: tiny.FIELDS[field] for field in ("num_layers", "d_model", "num_heads", "num_kv_heads", "d_ff")}
    sizes = dict(head_dim=6, embedding_size=0, dropout_rate=0.1, vocab_size=50, max_length=5)
    config = ModelConfig(**fields | sizes, dtype="float32")
    drawn, bernoulli = [], jax.random.bernoulli
    monkeypatch.setattr(
        "jax.random.bernoulli", lambda key, p, shape: drawn.append(shape) or bernoulli(key, p, shape=shape)
    )
    jax.eval_shape(lambda key: apply(config, tiny.params(config), BATCH, dropout_key=key), jax.random.key(0))
    stacks = config.has_encoder + config.has_decoder
    # A stack's embeddings, attention's probabilities and output, both sides of the feed-forward block, the final norm.
    least = stacks * (5 + (config.norm_position == "pre"))
    assert len(drawn) >= least + 2 * (stacks == 2)
    assert {draw[-2] for draw in drawn} == ({5} if per_element else {1})


@pytest.mark.parametrize("broadcast_positions", [True, False])
def test_equal_tokens_get_equal_states_only_where_positions_share_a_draw(broadcast_positions):
    config = tiny.config(
        architecture="encoder_only", positions="none", dropout_rate=0.3, dropout_broadcast_positions=broadcast_positions
    )
    run = jax.jit(lambda key: bind(config, tiny.params(config)).hidden(BATCH, dropout_key=key))
    states = np.asarray(run(jax.random.key(0))[0])
    difference = np.abs(states[1:] - states[:1]).max(axis=1)
    assert (difference < 1e-5).all() if broadcast_positions else (difference > 0.1).all()
