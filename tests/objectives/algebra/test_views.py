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
    # Ours: the noise spans after their own sentinels. T5's unique non-noise sentinels give 10 11 999 14 998 here.
    "noise_spans_after_sentinels": [999, 10, 11, 998, 14],
    "nonnoise_span_to_unique_sentinel": [10, 11, 999, 14, 998],
}


@pytest.mark.parametrize("name", LITERALS)
def test_literals(name):
    made = getattr(views, name)(TOKENS, NOISE, np.asarray([6]), vocab(size=1000))
    assert sequence(made) == LITERALS[name]


@pytest.mark.parametrize("name", [name for name in LITERALS if name != "noise_spans_after_sentinels"])
def test_reference_vectors_as_one_ragged_batch(name):
    """What t5 0.9.4 printed, several lengths at once: padding never shows."""
    for size in {case["vocab_size"] for case in REFERENCE["denoising_functions"]}:
        cases = [case for case in REFERENCE["denoising_functions"] if case["vocab_size"] == size]
        lengths = np.asarray([len(case["tokens"]) for case in cases])
        tokens = np.full((len(cases), lengths.max()), 77, np.int32)
        noise = np.ones(tokens.shape, bool)
        for e, case in enumerate(cases):
            tokens[e, : lengths[e]], noise[e, : lengths[e]] = case["tokens"], case["noise_mask"]
        made = getattr(views, name)(tokens, noise, lengths, vocab(size=size))
        assert [sequence(made, e) for e in range(len(cases))] == [case[name] for case in cases]


def test_targets_are_t5s_wherever_a_mask_starts_clean_and_ends_in_noise():
    same = 0
    for case in REFERENCE["denoising_functions"]:
        mask = np.asarray([case["noise_mask"]], bool)
        if mask[0, 0] or not mask[0, -1]:
            continue
        tokens = np.asarray([case["tokens"]], np.int32)
        made = views.noise_spans_after_sentinels(tokens, mask, np.asarray([tokens.size]), vocab(case["vocab_size"]))
        assert sequence(made) == case["nonnoise_span_to_unique_sentinel"]
        same += 1
    assert same >= 10
