"""FLOPs of learners, computed by hand: the sums of their models' and heads' products."""

from experiment.experiment import make_experiment
from tests.table import small_config

# One layer at 40 positions, with D 32, heads of 32 in total, and F 48 in two matrices, or three if gated:
# 8 * 40 * 32 * 32 of projections, 4 * 40 * 40 * 32 of scores and sums of values, 2 or 3 times 2 * 40 * 32 * 48.
LAYER, GATED_LAYER = 327_680 + 204_800 + 245_760, 327_680 + 204_800 + 368_640
VOCAB = 384  # 256 bytes, special tokens, 3 mode tokens and 100 sentinels, rounded up to a multiple of 128


def learner_of(name, architecture, **overrides):
    return make_experiment(small_config(name, architecture, **overrides)).learner


def test_a_training_step_is_three_forward_passes_of_every_row():
    experiment = make_experiment(small_config("clm", "decoder_only", train__batch_size=6, train__grad_accum_steps=3))
    forward = 2 * GATED_LAYER + 2 * 40 * 32 * VOCAB
    assert experiment.learner.forward_flops(40, 0) == forward
    assert experiment.train_step_flops == 3 * 6 * forward


def test_flops_of_electra_by_hand():
    """A generator of half the sizes, with logits at 6 of the 40 positions; a discriminator of the full sizes."""
    learner = learner_of("electra", "encoder_only")
    half_layer = 8 * 40 * 16 * 16 + 4 * 40 * 40 * 16 + 2 * 2 * 40 * 16 * 24  # 245,760
    generator = 2 * 40 * 32 * 16 + 2 * half_layer  # tables as wide as the discriminator's, projected
    predictions = 2 * 6 * (16 * 32 + 32 * VOCAB)  # 6 = 0.15 * 40
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


def test_flops_of_the_next_states_by_hand():
    """A third of a step's three products with the table: two forward and one backward, whose table is a constant."""
    both = learner_of("next_latent", "decoder_only", objective__horizon=3)
    alone = learner_of("next_latent:latent", "decoder_only", model__embedding_size=16)
    logits, mlp = 2 * 40 * 32 * VOCAB, 2 * 40 * 4 * 32 * 32
    assert both.forward_flops(40, 0) == 2 * GATED_LAYER + logits + 3 * (mlp + logits)
    projection = 2 * 40 * 16 * 32  # of the embeddings, once for the stack and once for the MLP
    assert alone.forward_flops(40, 0) == 2 * GATED_LAYER + logits + mlp + 2 * projection


def test_flops_of_learners_with_row_losses_by_hand():
    """Every encoding is a forward pass; pooler and classifier are products at one position, and 6 of 40 are scored."""
    logits, pooler = 2 * 6 * (32 * 32 + 32 * VOCAB), 2 * 32 * 32
    simcse = learner_of("simcse", "encoder_only")
    with_mlm = learner_of("simcse:with_mlm", "encoder_only")
    assert simcse.forward_flops(40, 0) == 2 * (2 * LAYER + pooler)
    assert with_mlm.forward_flops(40, 0) == 2 * (2 * LAYER + pooler) + 2 * LAYER + logits
    assert learner_of("nsp", "encoder_only").forward_flops(40, 0) == 2 * LAYER + logits + pooler + 2 * 32 * 2
    assert learner_of("classification", "encoder_only").forward_flops(40, 0) == 2 * LAYER + pooler + 2 * 32 * 2
    pair = learner_of("classification", "encoder_decoder")  # 40 encoder positions, and one of the decoder
    decoder_layer = 8 * 32 * 32 + 4 * 32 + 2 * 2 * 32 * 48
    cross_attention = 4 * 32 * 32 + 4 * 40 * 32 * 32 + 4 * 40 * 32
    stacks = 2 * (LAYER + decoder_layer + cross_attention)
    assert pair.forward_flops(40, 1) == stacks + pooler + 2 * 32 * 2
    narrow = learner_of("classification", "encoder_decoder", model__embedding_size=16)  # projected in both stacks
    assert narrow.forward_flops(40, 1) == pair.forward_flops(40, 1) + 2 * (40 + 1) * 16 * 32
    of_encoder = learner_of("classification", "encoder_decoder", objective__pooling="mean")
    assert of_encoder.forward_flops(40, 1) == 2 * LAYER + pooler + 2 * 32 * 2, "the decoder does not run"
    shared = learner_of("classification", "encoder_decoder", objective__pooling="mean", model__share_stacks=True)
    assert shared.forward_flops(40, 1) == of_encoder.forward_flops(40, 1), "no encoder alone can share its layers"
