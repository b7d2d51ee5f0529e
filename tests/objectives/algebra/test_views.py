"""Views of noise: T5's literals, vectors that T5's code printed, and where the targets here differ from T5's."""

import numpy as np
import pytest

from objectives.algebra import views
from tests.objectives.helpers import REFERENCE, sequence, vocab

TOKENS = np.arange(10, 16, dtype=np.int32)[None]
NOISE = np.asarray([[1, 1, 0, 0, 1, 0]], bool)

# t5/data/preprocessors_test.py, vocabulary of 1000.
LITERALS = {
    "noise_span_to_unique_sentinel": [999, 12, 13, 998, 15],
    "noise_span_to_sentinel": [999, 12, 13, 999, 15],
    "noise_token_to_sentinel": [999, 999, 12, 13, 999, 15],
    "nonnoise_span_to_sentinel": [10, 11, 999, 14, 999],
    "drop_noise_tokens": [12, 13, 15],
    "drop_nonnoise_tokens": [10, 11, 14],
    # A deviation: each noise span follows its own sentinel. T5's nonnoise_span_to_unique_sentinel is the next line.
    "noise_spans_after_sentinels": [999, 10, 11, 998, 14],
    "nonnoise_span_to_unique_sentinel": [10, 11, 999, 14, 998],
}


@pytest.mark.parametrize("name", LITERALS)
def test_views_equal_the_literals_of_t5(name):
    view = getattr(views, name)(TOKENS, NOISE, np.asarray([6]), vocab(size=1000))
    assert sequence(view) == LITERALS[name]


@pytest.mark.parametrize("name", [name for name in LITERALS if name != "noise_spans_after_sentinels"])
def test_views_of_a_ragged_batch_equal_the_output_of_t5(name):
    """The output of t5 0.9.4 for several lengths, so that padding must not appear."""
    for size in {case["vocab_size"] for case in REFERENCE["denoising_functions"]}:
        cases = [case for case in REFERENCE["denoising_functions"] if case["vocab_size"] == size]
        lengths = np.asarray([len(case["tokens"]) for case in cases])
        tokens = np.full((len(cases), lengths.max()), 77, np.int32)
        noise = np.ones(tokens.shape, bool)
        for e, case in enumerate(cases):
            tokens[e, : lengths[e]], noise[e, : lengths[e]] = case["tokens"], case["noise_mask"]
        view = getattr(views, name)(tokens, noise, lengths, vocab(size=size))
        assert [sequence(view, e) for e in range(len(cases))] == [case[name] for case in cases]
