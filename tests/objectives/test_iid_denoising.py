"""T5's objectives with independent noise tokens: literal examples, noise rates and output lengths."""

import numpy as np
import pytest

from configs.iid_denoising import VARIANTS
from contract.errors import ConfigError
from objectives import IIDDenoising
from objectives.algebra.noise import iid_counts, iid_noise_mask
from objectives.algebra.sequences import span_starts
from tests.objectives.helpers import collator, random_keys, sequence, vocab

EOS = 1
U_U, D_D, M_F, R10S90_F = (
    IIDDenoising(**VARIANTS[name]) for name in ("iid_15_u_u", "iid_15_d_d", "iid_15_m_f", "iid_15_r10s90_f")
)


def corrupted_example(objective, monkeypatch):
    """Inputs and targets of the example of t5/data/preprocessors_test.py.

    Tokens 10..15, noise mask 1 1 0 0 1 0, a vocabulary of 1000.
    """
    noise = np.asarray([[1, 1, 0, 0, 1, 0]], bool)
    monkeypatch.setattr("objectives.iid_denoising.iid_noise_mask", lambda *_, **__: noise)
    tokens = np.arange(10, 16, dtype=np.int32)[None]
    examples = objective.corrupt(tokens, np.asarray([6]), random_keys(1), vocab(size=1000))
    return sequence(examples.inputs), sequence(examples.targets)


@pytest.mark.parametrize(
    ("objective", "inputs", "targets"),
    [
        # T5's targets are 10 11 999 14 998: no sentinel before the first run, and one after the last.
        (U_U, [999, 12, 13, 998, 15, EOS], [999, 10, 11, 998, 14, EOS]),
        (D_D, [12, 13, 15, EOS], [10, 11, 14, EOS]),
        (M_F, [999, 999, 12, 13, 999, 15, EOS], [10, 11, 12, 13, 14, 15, EOS]),
    ],
)
def test_inputs_and_targets_equal_the_literals_of_t5(objective, inputs, targets, monkeypatch):
    assert corrupted_example(objective, monkeypatch) == (inputs, targets)


def test_bert_style_noise_is_90_percent_sentinels_and_10_percent_random_tokens():
    n, length = 300, 400
    tokens = np.full((n, length), 300, np.int32)  # not an ordinary token, so a random token always differs
    examples = R10S90_F.corrupt(tokens, np.full(n, length), random_keys(n), vocab())
    inputs = examples.inputs.tokens[:, :length]
    noise = inputs != 300
    assert noise.mean() == pytest.approx(0.15)
    assert (inputs[noise] == vocab().sentinel(0)).mean() == pytest.approx(0.9, abs=0.01)
    random_tokens = inputs[noise & (inputs != vocab().sentinel(0))]
    assert random_tokens.min() == 3 and random_tokens.max() == 258
    assert np.abs(np.bincount(random_tokens, minlength=259)[3:] / len(random_tokens) - 1 / 256).max() < 0.006


@pytest.mark.parametrize("length", [1, 2, 5, 7, 40])
def test_the_noise_rate_is_exact_at_every_length_and_position(length):
    """As with T5's independent draws, also where rate * length is not a whole number."""
    n = 20_000
    mask = iid_noise_mask(random_keys(n), np.full(n, length), length, noise_density=0.15)
    assert set(mask.sum(axis=1).tolist()) <= set(int(count) for count in iid_counts(length, 0.15))
    np.testing.assert_allclose(mask.mean(axis=0), 0.15, atol=4.5 * np.sqrt(0.15 * 0.85 / n))


def test_runs_of_noise_are_distributed_as_those_of_independent_draws():
    """L p (1 - p) + p^2 runs on average, of geometrically distributed lengths."""
    n, length, p = 2000, 512, 0.15
    mask = iid_noise_mask(random_keys(n), np.full(n, length), length, noise_density=p)
    starts = span_starts(mask)
    assert starts.sum(axis=1).mean() == pytest.approx(length * p * (1 - p) + p * p, rel=0.01)
    run_lengths = np.bincount(np.cumsum(starts.ravel())[mask.ravel()] - 1)
    for k in (1, 2, 3):
        assert (run_lengths == k).mean() == pytest.approx((1 - p) * p ** (k - 1), rel=0.05)


def test_windows_of_t5s_rows_have_the_expected_lengths():
    """T5 reads 511 raw tokens for 512 inputs, also where noise tokens are dropped and 435 inputs would do. Its rows
    have 192 and 104 targets, for random counts of noise tokens; the 77 of a window need at most 155 and 78."""
    for objective, targets in ((U_U, 155), (D_D, 78), (M_F, 512), (R10S90_F, 512)):
        collate = collator(objective, "encoder_decoder", inputs=512, targets=targets)
        assert collate.batch_spec.windows[0].raw_length == 511


def test_some_example_has_the_maximal_length_of_inputs_and_of_targets():
    """Examples are longest where noise and other tokens alternate, which these rates and lengths make likely. Inputs
    have room for all tokens and EOS too, as in T5."""
    for density, length in ((0.5, 9), (0.4, 10), (0.9, 10), (0.75, 3)):
        objective = IIDDenoising(density, "unique_sentinels", 0.0, "noise_spans")
        n = 20_000
        examples = objective.corrupt(np.full((n, length), 5, np.int32), np.full(n, length), random_keys(n), vocab())
        bounds = objective.output_lengths(np.asarray([length]))
        assert max(examples.inputs.lengths.max(), length + 1) == bounds.inputs[0]
        assert examples.targets.lengths.max() == bounds.targets[0]


def test_random_tokens_need_noise_that_is_shown():
    with pytest.raises(ConfigError, match=r"random_token_rate=0.1 does not go with objective.inputs='drop': set"):
        IIDDenoising(0.15, "drop", 0.1, "full").check("objective")
