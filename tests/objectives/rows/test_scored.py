"""The bound of the scored positions of a row, against batches of every objective of the table."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.helpers import random_keys, random_windows, vocab
from tests.table import CASES, objective_of, shares_rows, small_experiment
from tests.table import random_windows as windows_of

BERT = objective_of("mlm")


def most_in(batch) -> int:
    (weights,) = (field for name, field in batch.items() if name.endswith("_loss_weights"))
    return int((weights > 0).sum(axis=1).max())


def check(experiment) -> int:
    """The bound, after a comparison with batches of training and of evaluation."""
    most = 0
    for seed in range(3):
        windows = windows_of(experiment, 16, same_keys=False, seed=seed)
        most = max(most, most_in(experiment.collate(windows, 16)))
        shorter = np.random.default_rng(seed).integers(1, windows.lengths + 1)
        fields = {"lengths": shorter, "prompt_lengths": np.minimum(windows.prompt_lengths, shorter - 1)}
        assert most_in(experiment.collate(windows._replace(**fields), 16)) <= experiment.learner.setup.most_scored
    assert most <= experiment.learner.setup.most_scored <= 40
    return most


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_no_row_of_the_table_has_more(name, architecture):
    experiment = small_experiment(name, architecture)
    most, bound = check(experiment), experiment.learner.setup.most_scored
    if name.startswith(("clm", "mlm:bert", "unilm", "nsp", "sop")):
        assert most == bound  # reached, so that no smaller bound would hold
    if "encoder_only" in architecture and name != "classification":
        assert experiment.learner.num_logits(40) <= 7


@pytest.mark.parametrize("packing", ["equal", "planned"])
@pytest.mark.parametrize(
    ("name", "architecture"),
    [case for case in CASES if shares_rows(case[0]) and case[0].split(":")[0] in ("mlm", "unilm", "bart", "ul2")],
)
def test_no_row_of_several_examples_has_more(name, architecture, packing):
    lengths = {"data__inputs_length": 40, "data__targets_length": 40}
    check(small_experiment(name, architecture, data__examples_per_row=2, data__packing=packing, **lengths))


def test_rows_of_whole_documents_have_no_bound_but_their_length():
    assert small_experiment("sft", "decoder_only").learner.setup.most_scored == 40
    assert small_experiment("clm", "decoder_only", data__documents="pack").learner.setup.most_scored == 40


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    rate=st.floats(0.01, 0.99),
    count=st.sampled_from(["rounded", "probabilistic"]),
    unit=st.sampled_from(["token", "word"]),
)
def test_masked_examples_of_any_length_and_rate(lengths, rate, count, unit):
    objective = dataclasses.replace(BERT, mask_rate=rate, mask_count=count, mask_unit=unit)
    windows = random_windows(np.random.default_rng(0), lengths)
    examples = objective.corrupt(windows.tokens, windows.lengths, random_keys(len(lengths)), vocab())
    assert (examples.selected.sum(axis=1) <= objective.most_scored(windows.lengths)).all()
