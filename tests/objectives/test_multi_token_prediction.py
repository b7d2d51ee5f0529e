"""Multi-token prediction: the future tokens of each position, the weights of their losses, and invalid fields."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.batch import check_batch
from learners.multi_token_prediction import future_tokens
from objectives.multi_token_prediction import MultiTokenPrediction
from tests.objectives.helpers import collator, random_windows

# The documents 5 6 7 8 EOS and 9 EOS (EOS is 1), then padding; the token 7 is not scored.
SEGMENTS = [1, 1, 1, 1, 1, 2, 2, 0, 0]
PACKED = {
    "decoder_input_tokens": [0, 5, 6, 7, 8, 0, 9, 0, 0],
    "decoder_target_tokens": [5, 6, 7, 8, 1, 9, 1, 0, 0],
    "decoder_loss_weights": [1, 1, 0, 1, 1, 1, 1, 0, 0],
    "decoder_segment_ids": SEGMENTS,
    "decoder_positions": [0, 1, 2, 3, 4, 0, 1, 0, 0],
}


def batch_of(fields):
    dtypes = {name: np.float32 if name.endswith("weights") else np.int32 for name in fields}
    return {name: jnp.asarray([values], dtypes[name]) for name, values in fields.items()}


def test_future_tokens_of_a_packed_row_end_with_their_document():
    """Offset i: the tokens i positions ahead."""
    future = future_tokens(batch_of(PACKED), 3)
    offset_0 = {name: PACKED[f"decoder_{name}"] for name in future._fields}
    offset_1 = {
        "target_tokens": [6, 7, 8, 1, 0, 1, 0, 0, 0],
        "loss_weights": [1, 0, 1, 1, 0, 1, 0, 0, 0],
        "input_tokens": [5, 6, 7, 8, 0, 9, 0, 0, 0],
        "positions": [1, 2, 3, 4, 0, 1, 0, 0, 0],
    }
    offset_2 = {
        "target_tokens": [7, 8, 1, 0, 0, 0, 0, 0, 0],
        "loss_weights": [0, 1, 1, 0, 0, 0, 0, 0, 0],
        "input_tokens": [6, 7, 8, 0, 0, 0, 0, 0, 0],
        "positions": [2, 3, 4, 0, 0, 0, 0, 0, 0],
    }
    for i, expected in enumerate((offset_0, offset_1, offset_2)):
        assert {name: getattr(future, name)[i, 0].tolist() for name in expected} == expected
    assert future.target_tokens.dtype == jnp.int32 and future.loss_weights.dtype == jnp.float32


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    num_future_tokens=st.sampled_from([2, 5]),
    seed=st.integers(0, 2**32),
)
def test_the_future_tokens_of_a_segment_do_not_depend_on_other_segments(lengths, num_future_tokens, seed):
    """In a packed row, the i-th token ahead of position t is text[t + i - 1] of its document, or padding at its end."""
    windows = random_windows(np.random.default_rng(seed), lengths, row_ids=[0] * len(lengths))
    objective = MultiTokenPrediction(num_future_tokens, "independent", 1.0)
    batch = collator(objective, "decoder_only", inputs=40, documents="pack")(windows, 1)
    check_batch(batch, "decoder_only")
    future = future_tokens({name: jnp.asarray(array) for name, array in batch.items()}, num_future_tokens)
    for i in range(1, num_future_tokens + 1):
        row = []
        for text, length in zip(windows.tokens, lengths, strict=True):
            row += [*text[i - 1 : length].tolist(), *[0] * min(i - 1, length)]
        assert future.target_tokens[i - 1, 0].tolist() == row + [0] * (40 - len(row))
        assert float(future.loss_weights[i - 1].sum()) == sum(max(length - i + 1, 0) for length in lengths)
        assert (future.loss_weights[i - 1] == (future.target_tokens[i - 1] > 0)).all()


def test_loss_weights_are_those_of_the_papers():
    """Gloeckle et al.: the sum of the losses. DeepSeek-V3: the loss of the next token, plus lambda times the mean
    of the losses of its modules."""
    assert MultiTokenPrediction(4, "independent", 1.0).loss_weights == (1, 1, 1, 1)
    assert MultiTokenPrediction(2, "sequential", 0.3).loss_weights == (1, 0.3)
    assert MultiTokenPrediction(4, "sequential", 0.3).loss_weights == pytest.approx((1, 0.1, 0.1, 0.1))
