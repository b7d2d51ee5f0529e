"""CLM, prefix LM and span corruption: literal inputs and targets, and texts of any length restored from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from objectives import CLM, PrefixLM, SpanCorruption
from tests.objectives.helpers import random_keys, sequence, vocab

VOCAB = vocab()
EOS = VOCAB.eos
DENOISERS = {
    "t5": SpanCorruption(0.15, 3.0, False, "composition"),
    "rolled": SpanCorruption(0.15, 3.0, True, "composition"),
    "x1": SpanCorruption(0.5, 3.0, False, "composition"),
    "x4": SpanCorruption(0.5, 64.0, False, "composition"),
    "dense": SpanCorruption(0.9, 1.0, False, "composition"),
    "fixed_spans": SpanCorruption(0.5, 3.0, False, "fixed"),
    "geometric_spans": SpanCorruption(0.15, 3.0, True, "geometric"),
    "normal_spans": SpanCorruption(0.5, 8.0, False, "normal"),
    "uniform_spans": SpanCorruption(0.3, 2.5, True, "uniform"),
    "s": PrefixLM(0.25, "uniform", False),
    "s_with_sentinel": PrefixLM(0.25, "uniform", True),
    "fixed": PrefixLM(0.25, "fixed", False),
}


def test_span_corruption_gives_the_example_of_the_t5_code(monkeypatch):
    """Tokens a..j, mask 0 0 1 1 0 0 0 1 0 1, T5's vocabulary of 32,100."""
    mask = np.asarray([[0, 0, 1, 1, 0, 0, 0, 1, 0, 1]], bool)
    monkeypatch.setattr("objectives.span_corruption.random_spans_noise_mask", lambda *_, **__: mask)
    a, b, c, d, e, f, g, h, i, j = range(100, 110)
    tokens = np.arange(100, 110, dtype=np.int32)[None]
    examples = DENOISERS["t5"].corrupt(tokens, np.asarray([10]), random_keys(1), vocab(size=32100))
    assert sequence(examples.inputs) == [a, b, 32099, e, f, g, 32098, i, 32097, EOS]
    assert sequence(examples.targets) == [32099, c, d, 32098, h, 32097, j, EOS]


def test_prefix_lm_splits_the_text_with_and_without_a_sentinel():
    tokens = np.arange(10, 18, dtype=np.int32)[None]
    examples = DENOISERS["fixed"].corrupt(tokens, np.asarray([8]), random_keys(1), VOCAB)
    assert sequence(examples.inputs) == [10, 11, 12, 13, 14, 15, EOS]
    assert sequence(examples.targets) == [16, 17, EOS]
    examples = PrefixLM(0.25, "fixed", True).corrupt(tokens, np.asarray([8]), random_keys(1), VOCAB)
    assert sequence(examples.inputs) == [10, 11, 12, 13, 14, 15, 399, EOS]
    assert sequence(examples.targets) == [399, 16, 17, EOS]


def test_clm_has_empty_inputs_and_the_text_as_targets():
    examples = CLM().corrupt(np.asarray([[7, 8, 1]], np.int32), np.asarray([3]), random_keys(1), VOCAB)
    assert sequence(examples.inputs) == [] and sequence(examples.targets) == [7, 8, 1]


@pytest.mark.parametrize("name", DENOISERS)
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_inputs_and_targets_determine_the_text(name, lengths, seed):
    denoiser, lengths = DENOISERS[name], np.asarray(lengths)
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    examples = denoiser.corrupt(tokens, lengths, random_keys(len(lengths), seed), VOCAB)
    most_inputs, most_targets, _ = denoiser.output_lengths(lengths)
    for e, length in enumerate(lengths):
        inputs, targets = sequence(examples.inputs, e), sequence(examples.targets, e)
        assert len(inputs) <= most_inputs[e] and len(targets) <= most_targets[e]
        is_t5 = isinstance(denoiser, SpanCorruption) and denoiser.span_length_distribution == "composition"
        if is_t5 and not denoiser.random_roll and length > 1:
            assert (len(inputs), len(targets)) == (most_inputs[e], most_targets[e])
        assert inputs[-1] == targets[-1] == EOS
        used = [t for t in inputs if t in VOCAB.sentinels]
        assert used == VOCAB.sentinels[: len(used)].tolist()  # each once, highest id first
        assert used == [t for t in targets if t in VOCAB.sentinels]
        assert len(used) <= denoiser.num_sentinels(lengths)[e]
        restored = denoiser.restore(np.asarray(inputs), np.asarray(targets), VOCAB)
        assert restored.tolist() == tokens[e, :length].tolist()


@pytest.mark.parametrize(("fraction", "least"), [(0.5, 1), (0.25, 10)])
def test_prefix_lengths_are_uniform_between_their_bounds(fraction, least):
    """For L = 20 and d = 0.5 prefixes have 1..19 tokens; for d = 0.25 they have 10..19, as round(0.5 * 19) = 10."""
    n = 4000
    examples = PrefixLM(fraction, "uniform", False).corrupt(
        np.full((n, 20), 5, np.int32), np.full(n, 20), random_keys(n), VOCAB
    )
    prefixes = examples.inputs.lengths - 1
    counts = np.bincount(prefixes, minlength=20)
    assert prefixes.min() == least and prefixes.max() == 19
    expected = n / (20 - least)
    assert (np.abs(counts[least:20] - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (SpanCorruption(0.0, 3.0, False, "composition"), r"objective.noise_density=0.0 must be in \(0, 1\)"),
        (
            SpanCorruption(0.9, 3.0, False, "uniform"),
            r"objective.mean_noise_span_length=3.0 is too short .* there are fewer other tokens .* set it to 9 or more",
        ),
        (PrefixLM(0.75, "uniform", False), r"objective.target_fraction=0.75 must be 0.5 or less"),
    ],
)
def test_invalid_fields_raise(objective, message):
    with pytest.raises(ConfigError, match=message):
        objective.check("objective")


def test_t5s_spans_that_would_touch_are_longer_and_a_warning_says_so():
    """Of 100 tokens 90 are noise: the 10 others separate 10 spans, which have 9 tokens on average, not 3."""
    objective = SpanCorruption(0.9, 3.0, False, "composition")
    [warning] = objective.check("objective")
    assert warning.startswith("objective.mean_noise_span_length=3.0 is too short") and "have 9 tokens" in warning
    assert objective.expected()["span_length"] == pytest.approx(9.0)
    mask = objective.noise_mask(np.full(4, 100), random_keys(4), 100)
    assert mask.sum(1).tolist() == [90] * 4 and (np.diff(mask.astype(int)) == 1).sum(1).tolist() == [10] * 4
    assert SpanCorruption(0.75, 3.0, False, "composition").check("objective") == []
