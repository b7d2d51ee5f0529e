"""What every corruption of the table owes, whatever it is: an entry of OBJECTIVES needs no line of its own here."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.windows import Windows
from objectives import denoisers_of
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked
from objectives.rows.collate import extra_columns_of
from tests.objectives.helpers import vocab
from tests.table import CASES, changed_token, random_columns, small_config
from train.experiment import make_objective

VOCAB = vocab()


def corruptions():
    for name, architecture in {name: architecture for name, architecture in CASES}.items():
        fields = small_config(name, architecture)["objective"]
        for denoiser in denoisers_of(make_objective(fields), name):
            label = name if denoiser.name == name else f"{name}.{denoiser.name}"
            yield pytest.param(denoiser.objective, id=label)


every_corruption = pytest.mark.parametrize("objective", list(corruptions()))
a_batch = given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    text=st.sampled_from(["random", "lines", "nothing but EOS"]),
    seed=st.integers(0, 2**32),
)


def raw_examples(lengths, text, seed):
    """Windows with something behind each example's end, and with all that a corruption may read beside them."""
    generator, lengths = np.random.default_rng(seed), np.asarray(lengths)

    def raw_tokens(lengths):
        shape = len(lengths), int(lengths.max())
        tokens = generator.integers(VOCAB.content_start, VOCAB.content_end, shape).astype(np.int32)
        if text == "lines":
            tokens[generator.random(shape) < 0.2] = VOCAB.content_start + ord("\n")
        elif text != "random":
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


def result_of(objective, method, windows, chosen=slice(None)):
    """What `corrupt` or `hidden` gives for the windows `chosen`, cut to the longest of them as a batch is."""
    chosen = np.arange(len(windows.lengths))[chosen]
    lengths = windows.lengths[chosen]
    more = extra_columns_of(objective.extra_columns, windows, chosen)
    if "others" in more:
        more["others"] = Sequences(more["others"].tokens[:, : more["others"].lengths.max()], more["others"].lengths)
    tokens = windows.tokens[chosen, : lengths.max()]
    return getattr(objective, method)(tokens, lengths, windows.keys[chosen], VOCAB, **more)


def raw_text(objective, windows):
    """Tokens that an example may tell, int32 [E, W], and where they are, bool [E, W]; those of others come last."""
    tokens, valid = windows.tokens, valid_positions(windows.lengths, windows.tokens.shape[1])
    if "others" in objective.extra_columns:
        tokens = np.concatenate([tokens, windows.others_tokens], axis=1)
        others = valid_positions(windows.others_lengths, windows.others_tokens.shape[1])
        valid = np.concatenate([valid, others], axis=1)
    return tokens, valid


def example(made, e):
    """Inputs and targets of example e, int32 [n] each."""
    n = made.inputs.lengths[e]
    if isinstance(made, Masked):
        return made.inputs.tokens[e, :n], made.targets[e, :n]
    return made.inputs.tokens[e, :n], made.targets.tokens[e, : made.targets.lengths[e]]


def fields(made, e):
    """All that is said of example e."""
    columns = {name: getattr(made, name)[e] for name in made._fields[2:] if getattr(made, name) is not None}
    lengths = {name: column[: made.inputs.lengths[e]] for name, column in columns.items() if column.ndim}
    return dict(zip(("inputs", "targets"), example(made, e), strict=True)) | columns | lengths


@every_corruption
@settings(deadline=None, max_examples=30)
@a_batch
def test_the_text_comes_back_within_the_lengths_and_sentinels_announced(objective, lengths, text, seed):
    windows = raw_examples(lengths, text, seed)
    made, hidden = (result_of(objective, method, windows) for method in ("corrupt", "hidden"))
    most_inputs, most_targets, most_of_both = objective.output_lengths(windows.lengths)
    most_sentinels = objective.num_sentinels(windows.lengths)
    texts, valid = raw_text(objective, windows)
    for e, length in enumerate(lengths):
        raw = windows.tokens[e, :length].tolist()
        inputs, targets = example(made, e)
        assert inputs.dtype == targets.dtype == np.int32
        assert len(inputs) <= most_inputs[e] and (isinstance(made, Masked) or len(targets) <= most_targets[e])
        both = 0 if isinstance(made, Masked) else len(inputs) + len(targets)
        assert both <= most_of_both[e] <= most_inputs[e] + most_targets[e]
        used = set(np.intersect1d(np.concatenate([inputs, targets]), VOCAB.sentinels).tolist())
        assert used == set(VOCAB.sentinels[: len(used)].tolist()) and len(used) <= most_sentinels[e]
        restored = objective.restore(inputs, targets, VOCAB)
        if not objective.covers_window:  # all that is shown, and nothing that was not there
            told = Counter(restored.tolist())
            assert not told - Counter(texts[e, valid[e]].tolist())
            assert not Counter(texts[e, valid[e] & ~hidden[e]].tolist()) - told
        elif restored is None:
            said = Counter([t for t in [*inputs[:-1].tolist(), *targets[:-1].tolist()] if t not in used])
            assert said == Counter(raw)
        else:  # an EOS of the document's may have become one of the example's
            assert restored.tolist() in ([raw, raw[:-1]] if raw[-1] == VOCAB.eos else [raw])


@every_corruption
@settings(deadline=None, max_examples=30)
@a_batch
def test_inputs_tell_nothing_of_the_hidden_tokens_and_all_the_others(objective, lengths, text, seed):
    windows = raw_examples(lengths, text, seed)
    hidden = result_of(objective, "hidden", windows)
    tokens, valid = raw_text(objective, windows)
    assert hidden.shape == tokens.shape and not (hidden & ~valid).any()
    own, others = np.split(np.where(hidden, changed_token(VOCAB, tokens), tokens), [windows.tokens.shape[1]], axis=1)
    otherwise = windows._replace(tokens=own, others_tokens=others if others.size else windows.others_tokens)
    made, made_otherwise = (result_of(objective, "corrupt", one) for one in (windows, otherwise))
    for e in range(len(lengths)):
        inputs = example(made, e)[0].tolist()
        assert inputs == example(made_otherwise, e)[0].tolist()
        assert not Counter(tokens[e, valid[e] & ~hidden[e]].tolist()) - Counter(inputs)


@every_corruption
@settings(deadline=None, max_examples=15)
@a_batch
def test_an_example_is_the_same_in_any_company(objective, lengths, text, seed):
    windows = raw_examples(lengths, text, seed)
    together = result_of(objective, "corrupt", windows)
    for e in range(len(lengths)):
        alone = result_of(objective, "corrupt", windows, slice(e, e + 1))
        one, other = fields(together, e), fields(alone, 0)
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@every_corruption
def test_as_many_tokens_are_hidden_as_the_fields_ask(objective):
    """Within a twentieth, over windows long enough that rounding does not show."""
    expected = objective.expected()
    windows = raw_examples([500] * 400, "random", 0)
    if "selected" in expected:
        made = result_of(objective, "corrupt", windows)
        at = valid_positions(made.inputs.lengths, made.targets.shape[1])
        selected, shown = made.selected & at, made.inputs.tokens
        masked, changed = selected & (shown == VOCAB.mask), selected & (shown != made.targets)
        counts = {"selected": selected.sum() / at.sum(), "masked": masked.sum() / selected.sum()}
        counts["random"] = (changed & ~masked).sum() / selected.sum()
        assert counts == pytest.approx({name: expected[name] for name in counts}, rel=0.05, abs=1e-9)
        expected["corrupted"] = expected["selected"] * (expected["masked"] + expected["random"])
    share = result_of(objective, "hidden", windows).mean()
    if objective.covers_window and share and "corrupted" in expected:
        assert share == pytest.approx(expected["corrupted"], rel=0.05)
