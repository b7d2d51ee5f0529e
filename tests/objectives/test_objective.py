"""The interface of objectives: what a subclass must define, and what it must not inherit."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives import CLM, MLM, OBJECTIVES, Mixture, Objective, PrefixLM
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.algebra.views import (
    ALL_TOKENS,
    NOISE_TOKENS,
    NONNOISE_TOKENS,
    SENTINEL_PER_SPAN,
    SENTINEL_PER_TOKEN,
    SPANS_AFTER_SENTINELS,
    Bounds,
    sentinel_or_random,
)
from objectives.denoising import Denoising
from objectives.objective import InputsTargets
from objectives.prompting import Continue, InfillSpans, Prompting, Rewrite
from tests.objectives.helpers import random_windows, vocab

VOCAB = vocab()


def test_an_objective_without_an_abstract_member_cannot_be_instantiated():
    class Incomplete(Objective):
        prompting: ClassVar = Rewrite()

        def corrupt(self, tokens, lengths, keys, vocab):
            raise AssertionError

    with pytest.raises(TypeError, match=r"abstract.*hidden.*output_lengths.*restore"):
        Incomplete()


def reversed_texts(tokens, lengths):
    positions = np.maximum(lengths[:, None] - 1 - np.arange(tokens.shape[1]), 0)
    return Sequences(np.take_along_axis(tokens, positions, axis=1), lengths)


def test_a_reverse_language_model_does_not_inherit_the_prompting_and_bits_per_byte_of_clm():
    def corrupt(self, tokens, lengths, keys, vocab):
        forward = super(CLM, self).corrupt(tokens, lengths, keys, vocab)
        return InputsTargets(forward.inputs, reversed_texts(tokens, lengths))

    message = "ReverseCLM overrides corrupt and inherits prompting, scores_all_text, has_inputs"
    with pytest.raises(TypeError, match=message):
        type("ReverseCLM", (CLM,), {"corrupt": corrupt})
    members = {"prompting": None, "scores_all_text": True, "has_inputs": False}
    reverse = type("ReverseCLM", (CLM,), {"corrupt": corrupt, **members})()
    assert reverse.prompting is None and reverse.documents == CLM.documents


def test_a_subclass_that_does_not_override_corrupt_inherits_everything():
    class SplitCLM(CLM):
        documents: ClassVar = ("split",)

    assert SplitCLM().prompting is CLM.prompting and SplitCLM().scores_all_text and not SplitCLM().has_inputs


def test_an_mlm_that_overrides_corrupt_must_define_prompting():
    with pytest.raises(TypeError, match="inherits prompting, which"):
        type("OtherMLM", (MLM,), {"corrupt": lambda self, *_: None})


def test_every_objective_has_a_prompting_or_none():
    for name, objective in OBJECTIVES.items():
        if objective is Mixture:
            continue
        values = {field.name: 0.5 for field in dataclasses.fields(objective)}
        values |= {"inputs": "drop", "targets": "full"} if name == "iid_denoising" else {}
        assert isinstance(objective(**values).prompting, Prompting | None), name
    assert isinstance(CLM().prompting, Continue)
    assert PrefixLM(0.5, "uniform", True).prompting.task == "continue"


class RandomNoise(Denoising):
    """Denoising of any set of tokens."""

    inputs_view: ClassVar = ALL_TOKENS
    targets_view: ClassVar = ALL_TOKENS

    @classmethod
    def with_views(cls, inputs_view, targets_view):
        return type("WithViews", (cls,), {"inputs_view": inputs_view, "targets_view": targets_view})()

    def bounds(self, raw):
        noise = np.stack([np.zeros_like(raw), raw])
        return Bounds(raw, noise, np.minimum(noise, (raw + 1) // 2))

    def noise_mask(self, lengths, keys, width):
        random = np.stack([np.random.default_rng(int(key)).random(width) < 0.5 for key in keys])
        return random & valid_positions(lengths, width)


VIEWS = {
    "sentinel per span": SENTINEL_PER_SPAN,
    "spans after sentinels": SPANS_AFTER_SENTINELS,
    "sentinel per token": SENTINEL_PER_TOKEN,
    "sentinel or random": sentinel_or_random(0.5, 7),
    "non-noise": NONNOISE_TOKENS,
    "noise": NOISE_TOKENS,
    "all": ALL_TOKENS,
}


@pytest.mark.parametrize(("inputs", "targets"), itertools.product(VIEWS, VIEWS))
@settings(deadline=None, max_examples=8)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_lengths_and_sentinels_follow_from_the_views(inputs, targets, lengths, seed):
    objective = RandomNoise.with_views(VIEWS[inputs], VIEWS[targets])
    windows = random_windows(np.random.default_rng(seed), lengths)
    examples = objective.corrupt(windows.tokens, windows.lengths, windows.keys, VOCAB)
    noise = objective.hidden(windows.tokens, windows.lengths, windows.keys, VOCAB)
    for sequences, view in ((examples.inputs, VIEWS[inputs]), (examples.targets, VIEWS[targets])):
        spans = (noise & ~np.pad(noise, ((0, 0), (1, 0)))[:, :-1]).sum(axis=1)
        exact = Bounds(windows.lengths, np.stack([noise.sum(axis=1)] * 2), np.stack([spans] * 2))
        assert (sequences.lengths == view.length(exact)[0] + 1).all()
        for e, length in enumerate(sequences.lengths):
            found = np.unique(sequences.tokens[e, :length][np.isin(sequences.tokens[e, :length], VOCAB.sentinels)])
            assert len(found) <= view.num_sentinels(exact)[0][e]


def test_prompting_follows_from_the_views():
    assert isinstance(RandomNoise.with_views(SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS).prompting, InfillSpans)
    assert isinstance(RandomNoise.with_views(SENTINEL_PER_SPAN, ALL_TOKENS).prompting, Rewrite)
