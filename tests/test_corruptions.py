"""What every corruption of the table owes, whatever it is: an entry of OBJECTIVES needs no line of its own here."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives import denoisers_of
from objectives.examples import Masked
from tests.objectives.helpers import vocab
from tests.table import CASES, changed_token, small_config
from train.experiment import make_objective

VOCAB = vocab()


def corruptions():
    for name, architecture in {name: architecture for name, architecture in CASES}.items():
        fields = small_config(name, architecture)["objective"]
        for denoiser in denoisers_of(make_objective(fields), name):
            label = name if denoiser.name == name else f"{name}.{denoiser.name}"
            yield pytest.param(denoiser.corruption, id=label)


every_corruption = pytest.mark.parametrize("corruption", list(corruptions()))
a_batch = given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    text=st.sampled_from(["random", "lines", "nothing but EOS"]),
    seed=st.integers(0, 2**32),
)


def raw_examples(lengths, text, seed):
    """tokens, with something behind each example's end, lengths and keys."""
    generator, lengths = np.random.default_rng(seed), np.asarray(lengths)
    shape = len(lengths), int(lengths.max())
    tokens = generator.integers(VOCAB.content_start, VOCAB.content_end, shape).astype(np.int32)
    if text == "lines":
        tokens[generator.random(shape) < 0.2] = VOCAB.content_start + ord("\n")
    elif text != "random":
        tokens[:] = VOCAB.eos
    return tokens, lengths, generator.integers(0, 2**63, len(lengths)).astype(np.uint64)


def example(made, e):
    """Inputs and targets of example e, int32 [n] each."""
    n = made.inputs.lengths[e]
    if isinstance(made, Masked):
        return made.inputs.tokens[e, :n], made.targets[e, :n]
    return made.inputs.tokens[e, :n], made.targets.tokens[e, : made.targets.lengths[e]]


@every_corruption
@settings(deadline=None, max_examples=30)
@a_batch
def test_the_text_comes_back_within_the_lengths_and_sentinels_announced(corruption, lengths, text, seed):
    tokens, lengths, keys = raw_examples(lengths, text, seed)
    made = corruption.corrupt(tokens, lengths, keys, VOCAB)
    most_inputs, most_targets, most_of_both = corruption.output_lengths(lengths)
    most_sentinels = corruption.num_sentinels(lengths)
    for e, length in enumerate(lengths):
        raw = tokens[e, :length].tolist()
        inputs, targets = example(made, e)
        assert inputs.dtype == targets.dtype == np.int32
        assert len(inputs) <= most_inputs[e] and (isinstance(made, Masked) or len(targets) <= most_targets[e])
        both = 0 if isinstance(made, Masked) else len(inputs) + len(targets)
        assert both <= most_of_both[e] <= most_inputs[e] + most_targets[e]
        used = set(np.intersect1d(np.concatenate([inputs, targets]), VOCAB.sentinels).tolist())
        assert used == set(VOCAB.sentinels[: len(used)].tolist()) and len(used) <= most_sentinels[e]
        restored = corruption.restore(inputs, targets, VOCAB)
        if restored is None:
            said = Counter([t for t in [*inputs[:-1].tolist(), *targets[:-1].tolist()] if t not in used])
            assert said == Counter(raw)
        else:  # an EOS of the document's may have become one of the example's
            assert restored.tolist() in ([raw, raw[:-1]] if raw[-1] == VOCAB.eos else [raw])


@every_corruption
@settings(deadline=None, max_examples=30)
@a_batch
def test_inputs_tell_nothing_of_the_hidden_tokens_and_all_the_others(corruption, lengths, text, seed):
    tokens, lengths, keys = raw_examples(lengths, text, seed)
    hidden = corruption.hidden(tokens, lengths, keys, VOCAB)
    assert hidden.shape == tokens.shape and not hidden[np.arange(tokens.shape[1]) >= lengths[:, None]].any()
    made = corruption.corrupt(tokens, lengths, keys, VOCAB)
    otherwise = np.where(hidden, changed_token(VOCAB, tokens), tokens)
    made_otherwise = corruption.corrupt(otherwise, lengths, keys, VOCAB)
    for e, length in enumerate(lengths):
        inputs = example(made, e)[0].tolist()
        assert inputs == example(made_otherwise, e)[0].tolist()
        assert not Counter(tokens[e, :length][~hidden[e, :length]].tolist()) - Counter(inputs)


@every_corruption
@settings(deadline=None, max_examples=15)
@a_batch
def test_an_example_is_the_same_in_any_company(corruption, lengths, text, seed):
    tokens, lengths, keys = raw_examples(lengths, text, seed)
    together = corruption.corrupt(tokens, lengths, keys, VOCAB)
    for e, length in enumerate(lengths):
        alone = corruption.corrupt(tokens[e : e + 1, :length], lengths[e : e + 1], keys[e : e + 1], VOCAB)
        for one, other in zip(example(together, e), example(alone, 0), strict=True):
            np.testing.assert_array_equal(one, other)


@every_corruption
def test_as_many_tokens_are_hidden_as_the_fields_ask(corruption):
    """Within a twentieth, over windows long enough that rounding does not show."""
    asked = corruption.asked()
    tokens, lengths, keys = raw_examples([500] * 400, "random", 0)
    share = corruption.hidden(tokens, lengths, keys, VOCAB).mean()
    if "selected" in asked:
        asked["corrupted"] = asked["selected"] * (asked["masked"] + asked["random"])
    if share and "corrupted" in asked:
        assert share == pytest.approx(asked["corrupted"], rel=0.05)
