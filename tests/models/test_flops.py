"""Model FLOPs: computed by hand, and compared with XLA's count."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.table import small_config
from train.experiment import make_experiment


def test_flops_of_a_decoder_by_hand():
    """2 layers, D 32, 2 heads of 16, F 48 ungated or gated, V 256, rows of 40."""
    learner = learner_of("clm", "decoder_only")
    length, matrices = 40, 3 if learner.model.mlp.startswith("gated_") else 2
    projections = 4 * 2 * length * 32 * 32
    scores = 2 * (2 * length * length * 32)
    layer = projections + scores + matrices * 2 * length * 32 * 48
    expected = 3 * 5 * (2 * layer + 2 * length * 32 * learner.model.vocab_size)
    assert learner.train_step_flops(rows=5, inputs_length=length, targets_length=0) == expected


# One layer at 40 positions with D 32 in all heads together and F 48 in two matrices, three for a gated one:
# 8 * 40 * 32 * 32 of projections, 4 * 40 * 40 * 32 of scores and sums, 2 or 3 times 2 * 40 * 32 * 48.
LAYER, GATED_LAYER = 327_680 + 204_800 + 245_760, 327_680 + 204_800 + 368_640
VOCAB = 384  # 3 + 256 bytes + 3 mode tokens + 100 sentinels and the like, in steps of 128


def learner_of(name, architecture, **overrides):
    return make_experiment(small_config(name, architecture, **overrides)).learner


def test_flops_of_electra_by_hand():
    """A generator of half the sizes, with logits at 7 of the 40 positions; a discriminator of the full sizes."""
    learner = learner_of("electra", "encoder_only")
    half_layer = 8 * 40 * 16 * 16 + 4 * 40 * 40 * 16 + 2 * 2 * 40 * 16 * 24  # 245,760
    generator = 2 * 40 * 32 * 16 + 2 * half_layer  # tables as wide as the discriminator's, projected
    predictions = 2 * 7 * (16 * 32 + 32 * VOCAB)  # 7 = 0.15 * 40, rounded up, and one for the example
    discriminator = 2 * LAYER + 2 * 40 * (32 * 32 + 32)
    assert learner.model.vocab_size == VOCAB
    assert learner.forward_flops(40, 0) == generator + predictions + discriminator


def test_flops_of_further_tokens_by_hand():
    """Independent heads: one more layer and output table each. A sequential head also projects one more embedding."""
    heads = learner_of("multi_token_prediction:independent", "decoder_only")
    module = learner_of("multi_token_prediction:sequential", "decoder_only")
    logits = 2 * 40 * 32 * VOCAB
    assert heads.forward_flops(40, 0) == (2 + 3) * GATED_LAYER + 4 * logits
    assert module.forward_flops(40, 0) == (2 + 1) * GATED_LAYER + 2 * 40 * 64 * 32 + 2 * logits


def test_flops_of_learners_with_row_losses_by_hand():
    """Every encoding is a forward pass; pooler and classifier are products at one position."""
    logits, pooler = 2 * 40 * (32 * 32 + 32 * VOCAB), 2 * 32 * 32
    simcse = learner_of("simcse", "encoder_only")
    with_mlm = dataclasses.replace(simcse, objective=dataclasses.replace(simcse.objective, mlm_weight=0.1))
    assert simcse.forward_flops(40, 0) == 2 * (2 * LAYER + pooler)
    assert with_mlm.forward_flops(40, 0) == 2 * (2 * LAYER + pooler) + 2 * LAYER + logits
    assert learner_of("nsp", "encoder_only").forward_flops(40, 0) == 2 * LAYER + logits + pooler + 2 * 32 * 2
    assert learner_of("classification", "encoder_only").forward_flops(40, 0) == 2 * LAYER + pooler + 2 * 32 * 2


def test_flops_are_what_xla_counts_of_the_products():
    """An encoder-decoder's forward pass. One layer per stack, because XLA counts a loop's body once.

    XLA also counts elementwise operations, so its count is slightly larger.
    """
    fields = small_config("span_corruption", "encoder_decoder", model__num_layers=1, model__d_model=256)
    experiment = make_experiment(fields)
    learner, batch = experiment.learner, _zeros_batch()
    params = jax.eval_shape(learner.init_params, jax.random.key(0))

    def loss(params, batch):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[0]

    counted = jax.jit(loss).lower(params, batch).cost_analysis()["flops"]
    ours = learner.train_step_flops(rows=2, inputs_length=40, targets_length=40) / 3
    assert ours == pytest.approx(counted, rel=0.1) and ours < counted


def _zeros_batch():
    tokens = jnp.zeros((2, 40), jnp.int32)
    sides = {
        f"{side}_{name}": tokens
        for side in ("encoder", "decoder")
        for name in ("input_tokens", "segment_ids", "positions")
    }
    return sides | {
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": jnp.zeros((2, 40)),
        "example_source": tokens,
    }
