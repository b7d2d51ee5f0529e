"""The interface of objectives: what a subclass must define, and what it must not inherit."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from objectives import CLM, PrefixLM
from objectives.algebra.noise import valid_positions
from objectives.algebra.views import (
    ALL_TOKENS,
    NOISE_TOKENS,
    NONNOISE_TOKENS,
    SENTINEL_PER_SPAN,
    SENTINEL_PER_TOKEN,
    SPANS_AFTER_SENTINELS,
    NoiseCounts,
    sentinel_or_random,
)
from objectives.denoising import Denoising
from objectives.prompting import InfillSpans, Rewrite
from tests.objectives.helpers import random_windows, vocab

VOCAB = vocab()


def test_a_language_model_of_other_examples_does_not_inherit_the_prompting_and_bits_per_byte_of_clm():
    members = {"corrupt": lambda self, *_: None}
    message = "ReverseCLM changes the examples and inherits prompting, hidden_mask, restore, byte_metric, has_inputs"
    with pytest.raises(TypeError, match=message):
        type("ReverseCLM", (CLM,), members)
    members |= {"prompting": None, "hidden_mask": CLM.hidden_mask, "restore": CLM.restore}
    reverse = type("ReverseCLM", (CLM,), members | {"byte_metric": "bits_per_byte", "has_inputs": False})()
    assert reverse.prompting is None and reverse.documents == CLM.documents


@pytest.mark.parametrize("changed", ["noise_mask", "inputs_view", "targets_view"])
def test_a_denoiser_that_changes_the_noise_of_a_concrete_one_must_define_prompting_and_restore(changed):
    with pytest.raises(
        TypeError, match="SuffixLM changes the examples and inherits prompting, restore, variants of other"
    ):
        type("SuffixLM", (PrefixLM,), {changed: None})


class RandomNoise(Denoising):
    """Denoising of any set of tokens."""

    inputs_view: ClassVar = ALL_TOKENS
    targets_view: ClassVar = ALL_TOKENS

    @classmethod
    def with_views(cls, inputs_view, targets_view):
        return type("WithViews", (cls,), {"inputs_view": inputs_view, "targets_view": targets_view})()

    def noise_bounds(self, raw):
        return np.zeros_like(raw), raw

    def noise_mask(self, lengths, keys, width):
        random = np.stack([np.random.default_rng(int(key)).random(width) < 0.5 for key in keys])
        return random & valid_positions(lengths, width)


VIEWS = {
    "sentinel per span": SENTINEL_PER_SPAN,
    "spans after sentinels": SPANS_AFTER_SENTINELS,
    "sentinel per token": SENTINEL_PER_TOKEN,
    "sentinel or random": sentinel_or_random(0.5),
    "non-noise": NONNOISE_TOKENS,
    "noise": NOISE_TOKENS,
    "all": ALL_TOKENS,
}


@pytest.mark.parametrize("inputs", [name for name, view in VIEWS.items() if view.hidden_as])
@pytest.mark.parametrize("targets", VIEWS)
@settings(deadline=None, max_examples=8)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_lengths_and_sentinels_follow_from_the_views(inputs, targets, lengths, seed):
    objective = RandomNoise.with_views(VIEWS[inputs], VIEWS[targets])
    windows = random_windows(np.random.default_rng(seed), lengths)
    examples = objective.corrupt(windows.tokens, windows.lengths, windows.keys, VOCAB)
    noise = objective.hidden_mask(windows.tokens, windows.lengths, windows.keys, VOCAB)
    for sequences, view in ((examples.inputs, VIEWS[inputs]), (examples.targets, VIEWS[targets])):
        spans = (noise & ~np.pad(noise, ((0, 0), (1, 0)))[:, :-1]).sum(axis=1)
        exact = NoiseCounts(windows.lengths, np.stack([noise.sum(axis=1)] * 2), np.stack([spans] * 2))
        assert (sequences.lengths == view.length(exact)[0] + 1).all()
        for e, length in enumerate(sequences.lengths):
            found = np.unique(sequences.tokens[e, :length][np.isin(sequences.tokens[e, :length], VOCAB.sentinels)])
            assert len(found) <= view.num_sentinels(exact)[0][e]
    # The bounds hold although the number of noise tokens varies from none to all.
    bounds, sentinels = objective.output_lengths(windows.lengths), objective.num_sentinels(windows.lengths)
    both = examples.inputs.lengths + examples.targets.lengths
    assert (examples.inputs.lengths <= bounds.inputs).all() and (examples.targets.lengths <= bounds.targets).all()
    assert (both <= bounds.both).all()
    used = np.isin(examples.inputs.tokens, VOCAB.sentinels) & valid_positions(
        examples.inputs.lengths, examples.inputs.tokens.shape[1]
    )
    distinct = [len(np.unique(row[is_used])) for row, is_used in zip(examples.inputs.tokens, used, strict=True)]
    assert (distinct <= sentinels).all()


def test_more_spans_than_sentinels_raise():
    objective = RandomNoise.with_views(SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS)
    windows = random_windows(np.random.default_rng(0), [60])
    with pytest.raises(ValueError, match="spans need more sentinels than the vocabulary's 3"):
        objective.corrupt(windows.tokens, windows.lengths, windows.keys, vocab(num_sentinels=3))


def test_inputs_that_show_the_noise_need_a_hidden_mask_of_their_own():
    windows = random_windows(np.random.default_rng(0), [9])
    with pytest.raises(TypeError, match="must define hidden_mask: its inputs do not hide exactly the noise"):
        RandomNoise.with_views(ALL_TOKENS, NOISE_TOKENS).hidden_mask(
            windows.tokens, windows.lengths, windows.keys, VOCAB
        )


def test_prompting_follows_from_the_views():
    def prompting(*views):
        return RandomNoise.with_views(*views).prompting

    assert isinstance(prompting(SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS), InfillSpans)
    assert prompting(SENTINEL_PER_SPAN, ALL_TOKENS) == Rewrite(hidden_as="sentinel", writes="text")
    assert prompting(SENTINEL_PER_TOKEN, NOISE_TOKENS) == Rewrite(hidden_as="sentinels", writes="tokens")
    assert prompting(NONNOISE_TOKENS, SPANS_AFTER_SENTINELS) == Rewrite(hidden_as="gap", writes="spans")


def test_a_model_that_predicts_tokens_needs_a_prompting():
    class Silent(CLM):
        prompting = None

    with pytest.raises(ConfigError, match=r"^objective: Silent.prompting is None, and its learner 'token_prediction'"):
        Silent().check("objective")
