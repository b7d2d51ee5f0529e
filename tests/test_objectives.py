"""Properties of every objective's `corrupt`, `hidden` and `restore`. A new entry of OBJECTIVES is tested without a
change to this file."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.windows import Windows
from experiment.objective import make_objective
from objectives import denoisers_of
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked
from objectives.rows.collate import extra_columns_of
from tests.objectives.helpers import vocab
from tests.table import CASES, changed_token, random_columns, small_config

VOCAB = vocab()


def objective_params():
    for name, architecture in dict(CASES).items():  # each config on one of its architectures
        fields = small_config(name, architecture)["objective"]
        for denoiser in denoisers_of(make_objective(fields), name):
            label = name if denoiser.name == name else f"{name}.{denoiser.name}"
            yield pytest.param(denoiser.objective, id=label)


every_objective = pytest.mark.parametrize("objective", list(objective_params()))


def random_windows(lengths, text, seed):
    """Windows with tokens after each example's end, and with every column that an objective may read."""
    generator, lengths = np.random.default_rng(seed), np.asarray(lengths)

    def raw_tokens(lengths):
        shape = len(lengths), int(lengths.max())
        tokens = generator.integers(VOCAB.content_start, VOCAB.content_end, shape).astype(np.int32)
        if text == "lines":
            tokens[generator.random(shape) < 0.2] = VOCAB.content_start + ord("\n")
        elif text == "EOS":
            tokens[:] = VOCAB.eos
        return tokens

    tokens, keys = raw_tokens(lengths), generator.integers(0, 2**63, len(lengths)).astype(np.uint64)
    others = generator.permutation(lengths)
    return Windows(
        tokens,
        lengths,
        np.arange(len(lengths)),
        keys,
        np.zeros(len(lengths), np.int32),
        others_tokens=raw_tokens(others),
        others_lengths=others,
        **random_columns(generator, lengths),
    )


drawn_windows = st.builds(
    random_windows,
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    text=st.sampled_from(["random", "lines", "EOS"]),
    seed=st.integers(0, 2**32),
)


def every_objective_on_drawn_windows(max_examples):
    """Decorator: runs a test for every objective on windows that hypothesis draws."""

    def decorate(test):
        return every_objective(settings(deadline=None, max_examples=max_examples)(given(windows=drawn_windows)(test)))

    return decorate


def result_of(objective, method, windows, chosen=slice(None)):
    """`corrupt` or `hidden` of the windows `chosen`, cut to the longest of them as a batch is."""
    chosen = np.arange(len(windows.lengths))[chosen]
    lengths = windows.lengths[chosen]
    columns = extra_columns_of(objective.extra_columns, windows, chosen)
    if "others" in columns:
        others = columns["others"]
        columns["others"] = Sequences(others.tokens[:, : others.lengths.max()], others.lengths)
    tokens = windows.tokens[chosen, : lengths.max()]
    return getattr(objective, method)(tokens, lengths, windows.keys[chosen], VOCAB, **columns)


def raw_text(objective, windows):
    """The tokens that examples may contain, int32 [E, W], and where they are valid, bool [E, W]; "others" last."""
    tokens, valid = windows.tokens, valid_positions(windows.lengths, windows.tokens.shape[1])
    if "others" in objective.extra_columns:
        tokens = np.concatenate([tokens, windows.others_tokens], axis=1)
        others = valid_positions(windows.others_lengths, windows.others_tokens.shape[1])
        valid = np.concatenate([valid, others], axis=1)
    return tokens, valid


def example(examples, e):
    """Inputs and targets of example e, int32 [n] each."""
    n = examples.inputs.lengths[e]
    if isinstance(examples, Masked):
        return examples.inputs.tokens[e, :n], examples.targets[e, :n]
    return examples.inputs.tokens[e, :n], examples.targets.tokens[e, : examples.targets.lengths[e]]


def fields_of(examples, e):
    """All fields of example e, cut to its length."""
    columns = {name: getattr(examples, name)[e] for name in examples._fields[2:] if getattr(examples, name) is not None}
    cut = {name: column[: examples.inputs.lengths[e]] for name, column in columns.items() if column.ndim}
    return dict(zip(("inputs", "targets"), example(examples, e), strict=True)) | columns | cut


@every_objective_on_drawn_windows(max_examples=30)
def test_restored_text_equals_the_raw_text_and_lengths_and_sentinels_keep_their_bounds(objective, windows):
    examples, hidden = (result_of(objective, method, windows) for method in ("corrupt", "hidden"))
    bounds = objective.output_lengths(windows.lengths)
    max_sentinels = objective.num_sentinels(windows.lengths)
    texts, valid = raw_text(objective, windows)
    for e, length in enumerate(windows.lengths):
        raw = windows.tokens[e, :length].tolist()
        inputs, targets = example(examples, e)
        assert inputs.dtype == targets.dtype == np.int32
        assert len(inputs) <= bounds.inputs[e] and (isinstance(examples, Masked) or len(targets) <= bounds.targets[e])
        both = 0 if isinstance(examples, Masked) else len(inputs) + len(targets)
        assert both <= bounds.both[e] <= bounds.inputs[e] + bounds.targets[e]
        used = set(np.intersect1d(np.concatenate([inputs, targets]), VOCAB.sentinels).tolist())
        assert used == set(VOCAB.sentinels[: len(used)].tolist()) and len(used) <= max_sentinels[e]
        restored = objective.restore(inputs, targets, VOCAB)
        if not objective.covers_window:  # raw tokens only, and all of them that are not hidden
            counts = Counter(restored.tolist())
            assert not counts - Counter(texts[e, valid[e]].tolist())
            assert not Counter(texts[e, valid[e] & ~hidden[e]].tolist()) - counts
        elif restored is None:
            counts = Counter([t for t in [*inputs[:-1].tolist(), *targets[:-1].tolist()] if t not in used])
            assert counts == Counter(raw)
        else:  # the EOS of a document may have become the EOS of the example
            assert restored.tolist() in ([raw, raw[:-1]] if raw[-1] == VOCAB.eos else [raw])


@every_objective_on_drawn_windows(max_examples=30)
def test_inputs_do_not_depend_on_hidden_tokens_and_contain_all_other_tokens(objective, windows):
    hidden = result_of(objective, "hidden", windows)
    tokens, valid = raw_text(objective, windows)
    assert hidden.shape == tokens.shape and not (hidden & ~valid).any()
    own, others = np.split(np.where(hidden, changed_token(VOCAB, tokens), tokens), [windows.tokens.shape[1]], axis=1)
    changed = windows._replace(tokens=own, others_tokens=others if others.size else windows.others_tokens)
    examples, examples_of_changed = (result_of(objective, "corrupt", texts) for texts in (windows, changed))
    for e in range(len(windows.lengths)):
        inputs = example(examples, e)[0].tolist()
        assert inputs == example(examples_of_changed, e)[0].tolist()
        assert not Counter(tokens[e, valid[e] & ~hidden[e]].tolist()) - Counter(inputs)


@every_objective_on_drawn_windows(max_examples=15)
def test_an_example_does_not_depend_on_the_other_examples_of_its_batch(objective, windows):
    together = result_of(objective, "corrupt", windows)
    for e in range(len(windows.lengths)):
        alone = result_of(objective, "corrupt", windows, slice(e, e + 1))
        fields, fields_alone = fields_of(together, e), fields_of(alone, 0)
        assert fields.keys() == fields_alone.keys()
        for name in fields:
            np.testing.assert_array_equal(fields[name], fields_alone[name], err_msg=name)


@every_objective
def test_measured_corruption_rates_agree_with_the_expected_ones(objective):
    """To within 5%, over windows long enough that rounding does not matter."""
    expected = objective.expected()
    windows = random_windows([500] * 400, "random", 0)
    if "selected" in expected:
        examples = result_of(objective, "corrupt", windows)
        valid = valid_positions(examples.inputs.lengths, examples.targets.shape[1])
        selected, inputs = examples.selected & valid, examples.inputs.tokens
        masked, changed = selected & (inputs == VOCAB.mask), selected & (inputs != examples.targets)
        measured = {"selected": selected.sum() / valid.sum(), "masked": masked.sum() / selected.sum()}
        measured["random"] = (changed & ~masked).sum() / selected.sum()
        assert measured == pytest.approx({name: expected[name] for name in measured}, rel=0.05, abs=1e-9)
        expected["corrupted"] = expected["selected"] * (expected["masked"] + expected["random"])
    hidden_share = result_of(objective, "hidden", windows).mean()
    if objective.covers_window and hidden_share and "corrupted" in expected:
        assert hidden_share == pytest.approx(expected["corrupted"], rel=0.05)
