"""Views of noise: T5's literals, vectors that T5's code printed, and where the targets here differ from T5's."""

import numpy as np
import pytest

from objectives.algebra import views
from tests.objectives.helpers import REFERENCE, random_keys, sequence, vocab

TOKENS = np.arange(10, 16, dtype=np.int32)[None]
NOISE = np.asarray([[1, 1, 0, 0, 1, 0]], bool)

# T5's name of each view, and the literals of t5/data/preprocessors_test.py, with a vocabulary of 1000.
OF_T5 = {
    "noise_span_to_unique_sentinel": (views.SENTINEL_PER_SPAN, [999, 12, 13, 998, 15]),
    "noise_token_to_sentinel": (views.SENTINEL_PER_TOKEN, [999, 999, 12, 13, 999, 15]),
    "drop_noise_tokens": (views.NONNOISE_TOKENS, [12, 13, 15]),
    "drop_nonnoise_tokens": (views.NOISE_TOKENS, [10, 11, 14]),
}


@pytest.mark.parametrize("name", OF_T5)
def test_views_equal_the_literals_of_t5(name):
    view, literal = OF_T5[name]
    assert sequence(view.show(TOKENS, NOISE, np.asarray([6]), vocab(size=1000), random_keys(1))) == literal


def test_each_noise_span_follows_its_own_sentinel():
    """A deviation: T5's nonnoise_span_to_unique_sentinel gives 10 11 999 14 998."""
    shown = views.SPANS_AFTER_SENTINELS.show(TOKENS, NOISE, np.asarray([6]), vocab(size=1000), random_keys(1))
    assert sequence(shown) == [999, 10, 11, 998, 14]


@pytest.mark.parametrize("name", OF_T5)
def test_views_of_a_ragged_batch_equal_the_output_of_t5(name):
    """The output of t5 0.9.4 for several lengths, so that padding must not appear."""
    for size in {case["vocab_size"] for case in REFERENCE["denoising_functions"]}:
        cases = [case for case in REFERENCE["denoising_functions"] if case["vocab_size"] == size]
        lengths = np.asarray([len(case["tokens"]) for case in cases])
        tokens = np.full((len(cases), lengths.max()), 77, np.int32)
        noise = np.ones(tokens.shape, bool)
        for e, case in enumerate(cases):
            tokens[e, : lengths[e]], noise[e, : lengths[e]] = case["tokens"], case["noise_mask"]
        shown = OF_T5[name][0].show(tokens, noise, lengths, vocab(size=size), random_keys(len(cases)))
        assert [sequence(shown, e) for e in range(len(cases))] == [case[name] for case in cases]
