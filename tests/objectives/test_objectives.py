"""Each objective's inputs and targets: literals by hand, and the text given back, whatever its length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import rng
from contract.errors import ConfigError
from objectives import CLM, PrefixLM, SpanCorruption
from objectives.algebra.noise import random_spans_noise_mask
from tests.objectives.helpers import rebuild, sequence, vocab

VOCAB = vocab()
EOS = VOCAB.eos
DENOISERS = {
    "t5": SpanCorruption(0.15, 3.0, False),
    "rolled": SpanCorruption(0.15, 3.0, True),
    "x1": SpanCorruption(0.5, 3.0, False),
    "x4": SpanCorruption(0.5, 64.0, False),
    "dense": SpanCorruption(0.9, 1.0, False),
    "s": PrefixLM(0.25, "uniform", False),
    "s_with_sentinel": PrefixLM(0.25, "uniform", True),
    "fixed": PrefixLM(0.25, "fixed", False),
}


def some_keys(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def test_t5s_worked_example(monkeypatch):
    """Tokens a..j, mask 0 0 1 1 0 0 0 1 0 1, T5's vocabulary of 32,100."""
    mask = np.asarray([[0, 0, 1, 1, 0, 0, 0, 1, 0, 1]], bool)
    monkeypatch.setattr("objectives.span_corruption.random_spans_noise_mask", lambda *_, **__: mask)
    a, b, c, d, e, f, g, h, i, j = range(100, 110)
    tokens = np.arange(100, 110, dtype=np.int32)[None]
    made = DENOISERS["t5"].corrupt(tokens, np.asarray([10]), some_keys(1), vocab(size=32100))
    assert sequence(made.inputs) == [a, b, 32099, e, f, g, 32098, i, 32097, EOS]
    assert sequence(made.targets) == [32099, c, d, 32098, h, 32097, j, EOS]


def test_a_rolled_mask_that_starts_in_noise_and_ends_clean(monkeypatch):
    mask = np.asarray([[1, 0, 0, 1, 0]], bool)
    monkeypatch.setattr("objectives.span_corruption.random_spans_noise_mask", lambda *_, **__: mask)
    made = DENOISERS["rolled"].corrupt(np.arange(10, 15, dtype=np.int32)[None], np.asarray([5]), some_keys(1), VOCAB)
    assert sequence(made.inputs) == [399, 11, 12, 398, 14, EOS]
    assert sequence(made.targets) == [399, 10, 398, 13, EOS]


def test_prefix_lm_by_hand():
    tokens = np.arange(10, 18, dtype=np.int32)[None]
    made = DENOISERS["fixed"].corrupt(tokens, np.asarray([8]), some_keys(1), VOCAB)
    assert sequence(made.inputs) == [10, 11, 12, 13, 14, 15, EOS]
    assert sequence(made.targets) == [16, 17, EOS]
    made = PrefixLM(0.25, "fixed", True).corrupt(tokens, np.asarray([8]), some_keys(1), VOCAB)
    assert sequence(made.inputs) == [10, 11, 12, 13, 14, 15, 399, EOS]
    assert sequence(made.targets) == [399, 16, 17, EOS]


def test_clm_reads_nothing_and_adds_nothing():
    made = CLM().corrupt(np.asarray([[7, 8, 1]], np.int32), np.asarray([3]), some_keys(1), VOCAB)
    assert sequence(made.inputs) == [] and sequence(made.targets) == [7, 8, 1]


@pytest.mark.parametrize("name", DENOISERS)
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_inputs_and_targets_give_back_the_text(name, lengths, seed):
    denoiser, lengths = DENOISERS[name], np.asarray(lengths)
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    made = denoiser.corrupt(tokens, lengths, some_keys(len(lengths), seed), VOCAB)
    most_inputs, most_targets, _ = denoiser.output_lengths(lengths)
    for e, length in enumerate(lengths):
        inputs, targets = sequence(made.inputs, e), sequence(made.targets, e)
        assert len(inputs) <= most_inputs[e] and len(targets) <= most_targets[e]
        if isinstance(denoiser, SpanCorruption) and not denoiser.random_roll and length > 1:
            assert (len(inputs), len(targets)) == (most_inputs[e], most_targets[e])
        assert inputs.pop() == EOS and targets.pop() == EOS
        used = [t for t in inputs if t in VOCAB.sentinels]
        assert used == VOCAB.sentinels[: len(used)].tolist()  # each once, highest id first
        assert len(used) <= denoiser.num_sentinels(lengths)[e]
        text = tokens[e, :length].tolist()
        if isinstance(denoiser, PrefixLM) and not denoiser.sentinel:
            assert inputs + targets == text and targets
        else:
            assert [t for t in targets if t in VOCAB.sentinels] == used
            assert rebuild(inputs, targets, VOCAB) == text


@pytest.mark.parametrize(("fraction", "least"), [(0.5, 1), (0.25, 10)])
def test_prefix_split_is_uniform_between_its_bounds(fraction, least):
    """L = 20: prefixes 1..19 at d = .5; at .25 from round(.5 * 19) = 10 (half to even: 9.5 -> 10) to 19."""
    n = 4000
    made = PrefixLM(fraction, "uniform", False).corrupt(
        np.full((n, 20), 5, np.int32), np.full(n, 20), some_keys(n), VOCAB
    )
    prefixes = made.inputs.lengths - 1
    counts = np.bincount(prefixes, minlength=20)
    assert prefixes.min() == least and prefixes.max() == 19
    expected = n / (20 - least)
    assert (np.abs(counts[least:20] - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (SpanCorruption(0.0, 3.0, False), r"objective.noise_density=0.0 must lie between 0 and 1"),
        (SpanCorruption(1.0, 3.0, False), r"objective.noise_density=1.0 must lie between 0 and 1"),
        (SpanCorruption(0.15, 0.5, False), r"objective.mean_noise_span_length=0.5 must be 1 or more"),
        (PrefixLM(0.75, "uniform", False), r"objective.target_fraction=0.75 must satisfy 0 < d <= 0.5"),
        (PrefixLM(1.0, "fixed", False), r"objective.target_fraction=1.0 must satisfy 0 < d < 1"),
    ],
)
def test_fields_that_cannot_work(objective, message):
    with pytest.raises(ConfigError, match=message):
        objective.check("objective")


def test_masks_of_two_purposes_do_not_share_randomness():
    keys = some_keys(50)
    first = random_spans_noise_mask(keys, np.full(50, 40), 40, noise_density=0.5, mean_noise_span_length=3.0)
    second = random_spans_noise_mask(
        rng.fold_in(keys, 9), np.full(50, 40), 40, noise_density=0.5, mean_noise_span_length=3.0
    )
    assert (first != second).any(axis=1).all()
