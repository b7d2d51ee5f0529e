"""Planned rows: full, of whole examples, every denoiser with its weight, the same batches in every process."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import ul2
from contract.batch import check_batch
from contract.errors import ConfigError
from data.store.store import open_or_build
from data.windows.split import split_documents
from experiment.experiment import make_experiment
from objectives import PrefixLM, SpanCorruption, denoisers_of
from objectives.deshuffling import Deshuffling
from objectives.objective import Denoiser, RowShape
from objectives.rows.packing import plan_cycle, warnings_about
from tests.objectives.helpers import vocab
from tests.table import objective_of, reads_corpus, small_config, small_experiment

PLANNED = {"data__packing": "planned", "data__num_sentinels": 200}


def denoiser(name, objective, weight=1.0, mode=""):
    return Denoiser(name, f"objective.denoisers.{name}", objective, weight, mode, weight)


# FEW_TARGETS makes 8 inputs (7 tokens and EOS) and 3 targets (2 tokens and EOS) of 9 raw tokens; MANY_TARGETS makes 8
# inputs and 8 targets of 7 raw tokens.
FEW_TARGETS = denoiser("few", PrefixLM(0.25, "fixed", False))
MANY_TARGETS = denoiser("many", Deshuffling())


@pytest.mark.parametrize(
    ("weights", "inputs", "targets", "examples_per_row", "denoiser_ids", "raw_lengths", "filled", "recommended"),
    [
        ((1.0, 1.0), 16, 11, 2, [[0, 1]], [[9, 7]], (1.0, 1.0), 11),
        ((2.0, 1.0), 24, 14, 3, [[0, 0, 1]], [[9, 9, 7]], (1.0, 1.0), 14),
        # The two rows of the plan have 6 and 11 of 11 targets.
        ((3.0, 1.0), 16, 11, 2, [[0, 0], [0, 1]], [[9, 9], [9, 7]], (1.0, 17 / 22), 9),
    ],
)
def test_small_plans_have_the_expected_rows(
    weights, inputs, targets, examples_per_row, denoiser_ids, raw_lengths, filled, recommended
):
    denoisers = [dataclasses.replace(d, weight=w) for d, w in zip((FEW_TARGETS, MANY_TARGETS), weights, strict=True)]
    planned = plan_cycle(denoisers, RowShape("encoder_decoder", inputs, targets, examples_per_row))
    assert planned.rows.denoiser_ids.tolist() == denoiser_ids
    assert planned.rows.raw_lengths.tolist() == raw_lengths
    assert not planned.rows.variant_ids.any() and planned.rows.lengths_of(0).tolist() == [9]
    assert planned.filled == pytest.approx(filled) and planned.targets_length == recommended


MIXED = (
    denoiser("r", SpanCorruption(0.15, 3.0, False, "composition"), mode="[R]"),
    denoiser("s", PrefixLM(0.25, "uniform", True), mode="[S]"),
    denoiser("x", SpanCorruption(0.5, 8.0, True, "composition"), mode="[X]"),
)


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.sampled_from(["encoder_decoder", "decoder_only"]),
    st.integers(2, 5),
    st.integers(20, 80),
    st.floats(0.3, 1.0),
)
def test_examples_fit_their_rows_and_every_denoiser_has_its_weight(
    weights, architecture, examples_per_row, share, ratio
):
    denoisers = [dataclasses.replace(d, weight=float(w)) for d, w in zip(MIXED, weights, strict=True)]
    inputs_length = share * examples_per_row
    shape = RowShape(architecture, inputs_length, int(ratio * inputs_length), examples_per_row)
    planned = plan_cycle(denoisers, shape)
    denoiser_ids, raw_lengths, variant_ids = planned.rows
    assert {array.dtype for array in planned.rows} == {np.dtype(np.int32)}
    assert len({array.shape for array in planned.rows}) == 1 and denoiser_ids.shape[1] == examples_per_row

    used = np.zeros((2, *denoiser_ids.shape))
    for place in np.ndindex(denoiser_ids.shape):
        denoiser_id = denoiser_ids[place]
        variants = denoisers[denoiser_id].variants(int(variant_ids[denoiser_ids == denoiser_id].max()) + 1)
        inputs, targets, both = variants[variant_ids[place]].output_lengths(raw_lengths[place][None])
        used[:, *place] = (inputs[0], targets[0]) if architecture == "encoder_decoder" else (both[0], 0)
    capacity = [shape.inputs_length, shape.targets_length]
    assert (used.sum(axis=2).max(axis=1) <= capacity).all()
    filled = (used.sum(axis=2).mean(axis=1) / capacity)[: len(planned.filled)]
    assert (np.asarray(planned.filled) <= filled + 1e-9).all()

    amounts = np.bincount(denoiser_ids.ravel())
    np.testing.assert_allclose(amounts / amounts.sum() / (np.asarray(weights) / sum(weights)), 1, atol=0.01)
    variant_counts = np.bincount(variant_ids[denoiser_ids == 1])
    np.testing.assert_allclose(variant_counts / variant_counts.mean(), 1, atol=0.02)
    again = plan_cycle(denoisers, shape)
    assert all((first == second).all() for first, second in zip(planned.rows, again.rows, strict=True))


@pytest.mark.parametrize("variant", ul2.VARIANTS)
@pytest.mark.parametrize(("inputs", "examples_per_row"), [(1024, 4), (2048, 4), (4096, 8)])
def test_ul2_fills_encoder_and_decoder_at_the_targets_length_that_it_recommends(variant, inputs, examples_per_row):
    denoisers = denoisers_of(objective_of(f"ul2:{variant}"), "mixture")
    shape = RowShape("encoder_decoder", inputs, inputs, examples_per_row)
    first = plan_cycle(denoisers, shape)
    [warning] = warnings_about(first, shape)
    assert warning.endswith(f"; data.targets_length={first.targets_length} suits the examples")
    recommended = dataclasses.replace(shape, targets_length=first.targets_length)
    planned = plan_cycle(denoisers, recommended)
    assert min(planned.filled) >= 0.95 and warnings_about(planned, recommended) == []
    assert sum(len(planned.rows.lengths_of(k)) for k in range(len(denoisers))) < 100  # each length needs a reader


def dataset_of(experiment, **changes):
    """Batches of the experiment's corpus as pairs (windows, batch)."""
    store = open_or_build(experiment.data, experiment.tokenizer, progress=False)
    documents, _ = split_documents(store, experiment.data.split)

    def windows_and_batch(windows, num_rows):
        return windows, experiment.collate(windows, num_rows)

    return experiment.batches(documents, transform=windows_and_batch, **changes)


def filled_shares(batch):
    """The share of the positions that are not padding, for each stack."""
    return {name: float((batch[name] > 0).mean()) for name in batch if name.endswith("_segment_ids")}


@pytest.mark.parametrize(
    ("inputs", "targets", "examples_per_row"),
    [(1024, 586, 2), (1024, 586, 4), (2048, 1152, 4), (512, 288, 4)],  # the last two are those of the preset
)
def test_rows_of_a_corpus_are_as_full_as_planned(inputs, targets, examples_per_row, corpus):
    experiment = small_experiment(
        "ul2", "encoder_decoder", data__inputs_length=inputs, data__targets_length=targets,
        data__examples_per_row=examples_per_row, **PLANNED, **reads_corpus("ul2", corpus),
    )  # fmt: skip
    plan = experiment.batch_spec.plan
    num_rows = len(plan.denoiser_ids)  # one cycle
    windows, batch = dataset_of(experiment, batch_size=num_rows)[1]
    check_batch(batch, "encoder_decoder")
    assert min(filled_shares(batch).values()) >= 0.95
    assert np.bincount(windows.row_ids).tolist() == [examples_per_row] * num_rows
    for column, planned in zip((windows.denoiser_ids, windows.lengths, windows.variant_ids), plan, strict=True):
        np.testing.assert_array_equal(column, planned.ravel())
    assert np.bincount(windows.denoiser_ids).tolist() == [len(windows.denoiser_ids) / 7] * 7
    assert set(np.unique(batch["example_source"])) == set(range(7))
    # Prefix LM splits its text as without a plan: on average a quarter of the text is predicted, and at most half.
    is_s = np.flatnonzero(windows.denoiser_ids == 2)
    examples = experiment.collate.examples(windows)
    share = (examples.targets.lengths[is_s] - 1) / windows.lengths[is_s]
    assert 0 < share.min() < 0.07 and 0.43 < share.max() <= 0.5 and abs(share.mean() - 0.25) < 0.02


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_variants_of_prefix_lm_divide_its_prefix_lengths_into_adjacent_ranges(fraction, count):
    objective, raw = PrefixLM(fraction, "uniform", True), np.arange(1, 300)
    variants = objective.variants(count)
    ranges = [variant.prefix_lengths(raw) for variant in variants]
    shortest, longest = objective.prefix_lengths(raw)
    divides = longest - shortest + 1 >= count  # at least one prefix length for each variant
    assert (ranges[0][0] == shortest).all() and (ranges[-1][1][divides] == longest[divides]).all()
    for (_, last), (first_of_next, _) in itertools.pairwise(ranges):
        assert (first_of_next[divides] == last[divides] + 1).all()
    for variant, (first, last) in zip(variants, ranges, strict=True):
        assert ((shortest <= first) & (first <= last) & (last <= longest)).all()
        tokens = np.full((len(raw), raw.max()), 50, np.int32)
        inputs = variant.corrupt(tokens, raw, np.arange(len(raw), dtype=np.uint64), vocab()).inputs.lengths - 2
        assert ((first <= inputs) & (inputs <= last)).all()
        assert all((np.diff(lengths) >= 0).all() for lengths in variant.output_lengths(raw))
    assert PrefixLM(0.5, "fixed", True).variants(count) == (PrefixLM(0.5, "fixed", True),)


INVALID = {
    "one example": (
        {"data__examples_per_row": 1},
        r"divides rows among several examples: set data.examples_per_row=2 or",
    ),
    "pack": ({"data__documents": "pack"}, r"plans windows, and with data.documents='pack' documents determine them"),
    "tokens": ({"objective__mix_by": "token"}, r"plans shares of the examples: set mix_by='example'"),
    "targets": (
        {"data__targets_length": 9},
        r"data.targets_length=9 is too short for 4 examples of data.inputs_length",
    ),
    "sentinels": ({"data__num_sentinels": 4}, r"data.num_sentinels=4 is too few for x1: its windows of \d+ tokens"),
}


@pytest.mark.parametrize("case", INVALID)
def test_configs_that_cannot_be_planned_raise_one_line(case):
    changes, message = INVALID[case]
    name = "clm" if case == "pack" else "ul2"
    fields = {"data__inputs_length": 160, "data__targets_length": 96, "data__examples_per_row": 4, **PLANNED}
    with pytest.raises(ConfigError, match=message) as error:
        small_experiment(name, "encoder_decoder", **(fields | changes))
    assert len(str(error.value).splitlines()) == 1


def test_weights_that_change_or_are_too_small_cannot_be_planned():
    fields = small_config("ul2r:clm_then_ul2r", "decoder_only", data__packing="planned", data__examples_per_row=2)
    with pytest.raises(ConfigError, match=r"one plan for the whole run, and the mixture's weights change during the"):
        make_experiment(fields)
    small = [FEW_TARGETS, dataclasses.replace(MANY_TARGETS, weight=1e-4)]
    with pytest.raises(ConfigError, match=r"at most 1024 examples, too few for objective.denoisers.many with 0.01% of"):
        plan_cycle(small, RowShape("encoder_decoder", 16, 11, 2))


def test_a_partly_empty_stack_gives_a_warning_with_a_remedy():
    shape = RowShape("encoder_decoder", 16, 32, 2)
    [warning] = warnings_about(plan_cycle([MANY_TARGETS], shape), shape)
    # Two examples of 8 inputs and 8 targets, in rows of 16 and 32.
    assert warning == (
        "data.packing='planned' fills 100% of the encoder's and 50% of the decoder's positions; "
        "data.targets_length=16 suits the examples"
    )
    mixed = [dataclasses.replace(FEW_TARGETS, weight=3.0), MANY_TARGETS]
    shape = RowShape("encoder_decoder", 16, 9, 2)
    [warning] = warnings_about(plan_cycle(mixed, shape), shape)
    assert warning.endswith("of the decoder's positions; a larger data.examples_per_row with longer rows fills more")
