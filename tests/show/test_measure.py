"""train.show's counts of tokens and spans against counts by hand."""

import numpy as np
import pytest

from show.examples import examples_of, measure
from tests.show.batches import encoder_decoder_chunk


def measured(experiment, chunk):
    counts = measure(examples_of(chunk, experiment.vocab), experiment.vocab)
    return {name: values.tolist() for name, values in counts.items()}


def test_spans_replaced_by_sentinels(ul2, two_examples):
    examples = examples_of(two_examples, ul2.vocab)
    assert examples.rows.tolist() == [0, 0] and examples.segments.tolist() == [1, 2]
    assert measured(ul2, two_examples) == {
        "raw": [5, 4],
        "inputs": [5, 3],
        "targets": [5, 4],
        "scored": [5, 4],
        "used": [10, 7],
        "positions": [17.5, 14.5],  # each has half of the 15 positions of padding
        "hidden": [3, 3],
        "spans": [1, 1],  # the second is one gap without a mark
    }


@pytest.mark.parametrize(
    ("raw", "inputs", "hidden", "spans"),
    [
        ("abcdef", "a<extra_id_0>d<extra_id_1></s>", 4, 2),
        ("abcdef", "</s>", 6, 1),  # no inputs
        ("abcdef", "abcdef</s>", 0, 0),
        ("abcdef", "ab<extra_id_0><extra_id_0>ef</s>", 2, 1),  # each token keeps its place
        ("abcdef", "abXdYf</s>", 2, 2),  # replaced tokens
        ("abcdef", "adf</s>", 3, np.nan),  # dropped in two places, without a mark
        ("abcdef", "abc</s>", 3, 1),
        ("abcdef", "cdef</s>", 2, np.nan),
        ("abcdef", "[MASK]ab[MASK]f</s>", 3, 2),  # a span of no tokens has a mark too
        ("abcdef", "acbdfe</s>", 4, np.nan),  # a new order
    ],
)
def test_hidden_tokens_and_spans(ul2, raw, inputs, hidden, spans):
    chunk = encoder_decoder_chunk(ul2.tokenizer, [raw], [inputs], ["x</s>"], denoiser_ids=[0])
    counts = measured(ul2, chunk)
    assert counts["hidden"] == [hidden]
    np.testing.assert_array_equal(counts["spans"], [spans])
