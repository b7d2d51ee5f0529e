"""Which tokens a position's logits depend on, through the whole model.

Tested by gradients, by changing tokens, and by comparing packed rows with rows of one example.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

from models.transformer import apply
from tests.models import tiny

ARCHITECTURES = ["encoder_decoder", "decoder_only", "encoder_only"]
ENCODER = [1, 1, 1, 2, 2, 0]
DECODER = [1, 1, 1, 1, 2, 2, 2, 0]
PREFIX = [True, True, False, False, True, True, False, False]


def packed_batch(first, second):
    """Row 0: both examples and padding. Row 1: the first. Row 2: the second. An example: (encoder, decoder) tokens."""
    single = {"encoder": ([1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]), "decoder": ([1] * 4 + [0] * 4, [1] * 3 + [0] * 5)}
    batch = {}
    for side, segments, i in (("encoder", ENCODER, 0), ("decoder", DECODER, 1)):
        row = [*first[i], *second[i], 0]
        tokens = [row, row[: len(first[i])], row[len(first[i]) : -1]]
        padded = [example + [0] * (len(segments) - len(example)) for example in tokens]
        batch |= tiny.rows(side, [segments, *single[side]], padded)
    batch["decoder_bidirectional_mask"] = jnp.asarray([PREFIX, PREFIX[:4] + [False] * 4, PREFIX[4:7] + [False] * 5])
    return batch


FIRST, SECOND = ([10, 11, 12], [20, 21, 22, 23]), ([13, 14], [24, 25, 26])


def spans(architecture):
    """The positions of the first and the second example's logits in the packed row."""
    return (slice(0, 3), slice(3, 5)) if architecture == "encoder_only" else (slice(0, 4), slice(4, 7))


LOCAL = dict(global_every=2, local_distance=1, qk_norm=True, attention_softcap=2.0, first_attention_norm=False)


GEMMA = dict(positions="rope", sandwich_norm=True, scale_embeddings=True, global_every=2, first_layer_global=False)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        *((architecture, dict(positions="relative")) for architecture in ARCHITECTURES),
        *(("encoder_decoder", fields) for fields in (dict(positions="rope"), dict(positions="learned"), LOCAL, GEMMA)),
    ],
)
def test_packed_examples_give_the_logits_of_single_ones_and_are_independent(architecture, fields):
    config = tiny.config(architecture=architecture, **fields)
    params, (first, second) = tiny.params(config), spans(architecture)
    logits = tiny.run(config, params, packed_batch(FIRST, SECOND))
    np.testing.assert_allclose(logits[0, first], logits[1, : first.stop], atol=2e-5)
    np.testing.assert_allclose(logits[0, second], logits[2, : second.stop - second.start], atol=2e-5)

    other = tiny.run(config, params, packed_batch(FIRST, ([31, 32], [33, 34, 35])))
    np.testing.assert_array_equal(logits[0, first], other[0, first])
    assert (logits[0, second] != other[0, second]).any()
    other = tiny.run(config, params, packed_batch(([36, 37, 38], [39, 40, 41, 42]), SECOND))
    np.testing.assert_array_equal(logits[0, second], other[0, second])
    assert (logits[0, first] != other[0, first]).any()


def test_padding_changes_no_bit_and_has_finite_logits():
    config = tiny.config(architecture="decoder_only")
    params, batch = tiny.params(config), packed_batch(FIRST, SECOND)
    changed = {**batch, "decoder_input_tokens": batch["decoder_input_tokens"].at[:, 7].set(9)}
    before, after = (tiny.run(config, params, b) for b in (batch, changed))
    np.testing.assert_array_equal(before[0, :7], after[0, :7])
    empty = {**batch, "decoder_segment_ids": jnp.zeros_like(batch["decoder_segment_ids"])}
    assert np.isfinite(tiny.run(config, params, empty)).all()


def expected_dependence(architecture, prefix):
    """[L, L], by hand: 1 where the logits at a position (row) depend on the token at a position (column).

    Padding depends on itself alone, through the residual connections.
    """
    if architecture == "encoder_only":
        return block_diag(np.ones((3, 3)), np.ones((2, 2)), 1)
    first = [[1, int(prefix), 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    second = [[1, int(prefix), 0], [1, 1, 0], [1, 1, 1]]
    return block_diag(first, second, 1)


@pytest.mark.parametrize(
    "architecture, prefix",
    [("encoder_decoder", False), ("decoder_only", False), ("decoder_only", True), ("encoder_only", False)],
)
def test_gradients_are_nonzero_for_exactly_the_unmasked_tokens(architecture, prefix):
    config = tiny.config(architecture=architecture)
    params, batch = tiny.params(config), jax.tree.map(lambda x: x[:1], packed_batch(FIRST, SECOND))
    batch["decoder_bidirectional_mask"] &= prefix
    for side, padding in (("encoder", 48), ("decoder", 49)):  # so that no two positions hold the same token
        batch[f"{side}_input_tokens"] = batch[f"{side}_input_tokens"].at[0, -1].set(padding)

    def logit_sums(table):
        return apply(config, {**params, "token_embedder": {"embedding": table}}, batch)[0].sum(-1)

    jacobian = np.abs(jax.jit(jax.jacrev(logit_sums))(params["token_embedder"]["embedding"])).sum(-1)
    side = "encoder" if architecture == "encoder_only" else "decoder"
    depends = jacobian[:, batch[f"{side}_input_tokens"][0]] != 0
    np.testing.assert_array_equal(depends, expected_dependence(architecture, prefix))
    if architecture == "encoder_decoder":
        through_cross = np.zeros((8, 6))
        through_cross[:4, :3] = through_cross[4:7, 3:5] = 1
        np.testing.assert_array_equal(jacobian[:, batch["encoder_input_tokens"][0]] != 0, through_cross)
