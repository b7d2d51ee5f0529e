"""Collate: denoisers that share a call make the examples that each of them makes alone."""

import contextlib
import dataclasses

import numpy as np
import pytest

from configs.base import denoiser as row_fields
from configs.base import mixture
from objectives import Denoiser, SpanCorruption, denoisers_of
from objectives.algebra.sequences import Sequences
from objectives.denoising import corrupt_together
from objectives.objective import InputsTargets, Objective, OutputLengths, RowShape
from objectives.rows.collate import Collator, check_lengths
from tests.objectives.helpers import collator as one_collator
from tests.objectives.helpers import make_collator, random_windows, sequence, vocab
from tests.table import CASES, objective_of, small_config, small_experiment
from tests.table import random_windows as random_windows_of

BERNOULLI = small_config("masked_diffusion:bernoulli", "encoder_only")["objective"]
UL2 = denoisers_of(objective_of("ul2"), "ul2")
MODES = ("", "[R]", "[X]")
OTHERS = ("fim", "reverse", "sft", "classification", "simcse")  # do not join documents
# Every denoising objective of configs/, some with a mode token and some without, and objectives of other classes.
NAMES = [
    name for name, architecture in CASES if architecture == "encoder_decoder" and name.partition(":")[0] not in OTHERS
]
TABLE = tuple(
    Denoiser(f"{name}/{denoiser.name}", "x", denoiser.objective, 1.0, MODES[(k + j) % 3], 1.0)
    for k, name in enumerate(NAMES)
    for j, denoiser in enumerate(denoisers_of(objective_of(name), "x"))
)


def collator_of(denoisers) -> Collator:
    shape = RowShape("encoder_decoder", 128, 160, 1)
    return make_collator(tuple(denoisers), shape, vocab(), documents="join", bidirectional_inputs=True)


def windows_of(denoiser_ids, longest=40):
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, longest, len(denoiser_ids))
    return random_windows(generator, lengths, denoiser_ids=np.asarray(denoiser_ids, np.int32))


@pytest.mark.parametrize("num_corpora", [1, 3])
def test_six_of_ul2s_denoisers_are_corrupted_by_one_call(num_corpora, monkeypatch):
    calls = []
    count = lambda members, *arguments: calls.append(len(members)) or corrupt_together(members, *arguments)  # noqa: E731
    monkeypatch.setattr("objectives.rows.collate.corrupt_together", count)
    tasks = [dataclasses.replace(row, corpus=k) for k in range(num_corpora) for row in UL2]
    collator_of(tasks).examples(windows_of(np.arange(2 * len(tasks)) % len(tasks)))
    assert calls == [6 * num_corpora, num_corpora]


# All denoisers, and a single group of them, whose examples are the whole batch.
TABLES = {
    "all": TABLE,
    "one group": tuple(row for row in TABLE if row.objective.__class__ is SpanCorruption and row.mode),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_denoiser_makes_the_same_examples_beside_all_others(name):
    table = TABLES[name]
    windows = windows_of(np.random.default_rng(1).permutation(np.arange(8 * len(table)) % len(table)))
    together = collator_of(table).examples(windows)
    assert len(table) > 5
    for k, denoiser in enumerate(table):
        places = np.flatnonzero(windows.denoiser_ids == k)
        alone = collator_of([denoiser]).examples(
            windows._replace(
                tokens=windows.tokens[places],
                lengths=windows.lengths[places],
                keys=windows.keys[places],
                row_ids=np.arange(len(places)),
                denoiser_ids=np.zeros(len(places), np.int32),
            )
        )
        if alone.positions is not None:
            counts = alone.targets.lengths
            assert [together.positions[place, :n].tolist() for place, n in zip(places, counts, strict=True)] == [
                alone.positions[e, :n].tolist() for e, n in enumerate(counts)
            ]
        for both, one in ((together.inputs, alone.inputs), (together.targets, alone.targets)):
            assert [sequence(both, place) for place in places] == [sequence(one, e) for e in range(len(places))]


# Examples that are longer than their objective declares

BERT, PREFIX_LM = objective_of("mlm"), objective_of("prefix_lm")


def longer(sequences: Sequences) -> Sequences:
    return Sequences(np.pad(sequences.tokens, ((0, 0), (0, 2)), constant_values=3), sequences.lengths + 2)


class Overlong(type(PREFIX_LM)):
    """Prefix LM with two more tokens than it declares in the inputs, the targets, or both."""

    grows: tuple[str, ...] = ()
    period = 1  # of the targets with a weight
    prompting = PREFIX_LM.__class__.prompting
    hidden_mask = PREFIX_LM.__class__.hidden_mask
    restore = PREFIX_LM.__class__.restore
    byte_metric = PREFIX_LM.byte_metric
    has_inputs = PREFIX_LM.has_inputs
    most_scored = Objective.most_scored
    variants = Objective.variants

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        examples: InputsTargets = super().corrupt(tokens, lengths, keys, vocab, **columns)
        weights = np.zeros(examples.targets.tokens.shape, np.float32)
        weights[:, :: self.period] = 0.5
        longer_parts = {name: longer(getattr(examples, name)) for name in self.grows}
        return examples._replace(**longer_parts or {"weights": weights})


class InputsGrow(Overlong):
    grows = ("inputs",)


class TargetsGrow(Overlong):
    grows = ("targets",)


class ScoresLess(Overlong):
    def most_scored(self, raw):
        return np.zeros_like(raw)


class ScoresHalf(Overlong):
    """Every second target has the weight 0."""

    period = 2

    def most_scored(self, raw):
        return np.full_like(raw, 2)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (InputsGrow, "makes 6 inputs of a window of 6 tokens, and output_lengths returns 4: define output_"),
        (TargetsGrow, "makes 6 targets of a window of 6 tokens, and output_lengths returns 4: define output_"),
        (ScoresHalf, "makes 3 scored positions of a window of 10 tokens, and most_scored returns 2: define most_s"),
        (ScoresLess, "makes 6 scored positions of a window of 10 tokens, and most_scored returns 0: define most_s"),
    ],
)
def test_more_tokens_than_declared_are_one_line(objective, message):
    fixed = {"target_fraction": 0.5, "split": "fixed", "sentinel": False}
    overlong = objective(**fixed)
    windows = random_windows(np.random.default_rng(0), [6, 10])
    one_collator(Overlong(**fixed), "encoder_decoder")(windows, 2)
    with pytest.raises(TypeError, match=f"^{objective.__name__}.corrupt {message}"):
        one_collator(overlong, "encoder_decoder")(windows, 2)


class Longer(type(BERT)):
    """MLM whose examples have [CLS] and [SEP], which it does not declare."""

    def output_lengths(self, raw):
        return OutputLengths(raw, np.zeros_like(raw), raw)


def test_positions_in_place_that_are_not_declared_are_one_line():
    longer = Longer(**{field.name: getattr(BERT, field.name) for field in dataclasses.fields(BERT)})
    windows = random_windows(np.random.default_rng(0), [4])
    with pytest.raises(TypeError, match=r"^Longer.corrupt makes 6 inputs of a window of 4 tokens, and output_lengths"):
        one_collator(longer, "encoder_only")(windows, 1)


@pytest.mark.parametrize(("name", "architecture"), [("ul2", "encoder_decoder"), ("hybrid", "decoder_only")])
def test_the_loss_weight_of_a_denoiser_multiplies_those_of_its_examples_and_changes_nothing_else(name, architecture):
    experiment = small_experiment(name, architecture)
    factors = np.arange(1, len(experiment.denoisers) + 1) / 2
    windows = random_windows_of(experiment, 8, same_keys=False)
    expected, found = (
        dataclasses.replace(experiment.collate, denoisers=rows)(windows, 8)
        for rows in (
            tuple(dataclasses.replace(row, loss_weight=1.0) for row in experiment.denoisers),
            tuple(
                dataclasses.replace(row, loss_weight=n) for row, n in zip(experiment.denoisers, factors, strict=True)
            ),
        )
    )
    weights = expected.pop("decoder_loss_weights")
    np.testing.assert_array_equal(found.pop("decoder_loss_weights"), weights * factors[expected["example_source"]])
    assert len(np.unique(weights * factors[expected["example_source"]])) == len(factors) + 1
    for field in expected:
        np.testing.assert_array_equal(found[field], expected[field], field)


def test_the_denominators_of_a_loss_have_its_weight_too():
    rows = {name: row_fields(mode="", weight=1.0, **BERNOULLI) for name in "ab"}
    rows["b"]["loss_weight"] = 3.0
    experiment = small_experiment("masked_diffusion:bernoulli", "encoder_only", objective=mixture(rows))
    batch = experiment.collate(random_windows_of(experiment, 4, same_keys=False), 4)
    np.testing.assert_array_equal(batch["encoder_loss_denominators"], np.where(batch["example_source"], 3.0, 1.0))
    assert len(np.unique(batch["example_source"])) == 2
    assert all(row.loss_weight == 1.0 for row in experiment.heldout_collate.denoisers)


@pytest.mark.parametrize(
    ("weight", "byte_metric", "message"),
    [
        (-1.0, "", "Overlong.corrupt returns weights below 0"),
        (0.5, "bits_per_byte", "Overlong.byte_metric='bits_per_byte', and its targets have weights other than 1"),
        (1.0, "bits_per_byte", ""),
        (0.5, "", ""),
    ],
)
def test_weights_of_targets_that_no_loss_of_a_text_has(weight, byte_metric, message, monkeypatch):
    monkeypatch.setattr(Overlong, "byte_metric", byte_metric)
    lengths = np.array([6, 6])
    examples = PREFIX_LM.corrupt(np.full((2, 6), 9, np.int32), lengths, np.arange(2, dtype=np.uint64), vocab())
    weighted = examples._replace(weights=np.full(examples.targets.tokens.shape, weight, np.float32))
    with pytest.raises(TypeError, match=message) if message else contextlib.nullcontext():
        check_lengths(Overlong(**vars(PREFIX_LM)), weighted, lengths, slice(None))
