"""Causal rows and rows that are read in both directions in one batch of a decoder: configs/hybrid.py."""

import functools

import jax
import numpy as np
import pytest

from configs.hybrid import MNTP
from contract.batch import check_batch
from experiment.experiment import make_experiment
from models.transformer import apply
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Masked, RowShape
from objectives.rows.layout import decoder_examples, decoder_only
from run.step import make_eval_step
from tests.models import tiny
from tests.objectives.helpers import vocab
from tests.small_fields import small_config
from tests.table import random_windows, small_experiment

VOCAB = vocab()
M = VOCAB.mask


def row(*values):
    return np.array([values], np.int32)


def test_a_packed_row_with_an_example_of_each_kind():
    """MNTP of 5 6 7 with 6 hidden, then MLM of 8 9 with 9 hidden."""
    texts = np.array([[5, 6, 7], [8, 9, 0]], np.int32)
    shown = np.array([[5, M, 7], [8, M, 0]], np.int32)
    selected = np.array([[0, 1, 0], [0, 1, 0]], bool)
    examples = Masked(Sequences(shown, np.array([3, 2])), texts, selected, shifted=np.array([True, False]))
    batch = decoder_only(
        examples, np.array([0, 0]), np.array([0, 1], np.int32), 1, RowShape("decoder_only", 7, 0, 2), VOCAB
    )
    check_batch(batch, "decoder_only")
    expected = {
        "decoder_target_tokens": row(5, 6, 7, 8, 9, 0, 0),
        "decoder_input_tokens": row(VOCAB.decoder_start, 5, M, 8, M, 0, 0),
        "decoder_loss_weights": row(0, 1, 0, 0, 1, 0, 0),
        "decoder_segment_ids": row(1, 1, 1, 2, 2, 0, 0),
        "decoder_positions": row(0, 1, 2, 0, 1, 0, 0),
        "decoder_bidirectional_mask": row(1, 1, 1, 1, 1, 0, 0),
        "example_source": row(0, 0, 0, 1, 1, 0, 0),
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_examples_of_inputs_and_targets_are_laid_out_the_same_in_a_mixture_with_masked_ones():
    generator = np.random.default_rng(0)
    inputs = Sequences(generator.integers(5, 99, (4, 6)).astype(np.int32), np.array([0, 3, 6, 1]))
    targets = Sequences(generator.integers(5, 99, (4, 5)).astype(np.int32), np.array([4, 5, 1, 2]))
    examples = InputsTargets(inputs, targets)
    where = np.array([0, 0, 1, 2]), np.zeros(4, np.int32), 3, RowShape("decoder_only", 13, 0, 2), VOCAB
    for bidirectional in (True, False):
        alone = decoder_only(examples, *where, bidirectional_inputs=bidirectional)
        mixed = decoder_only(decoder_examples(examples, bidirectional, VOCAB), *where)
        for name, array in alone.items():
            np.testing.assert_array_equal(mixed[name], array, err_msg=name)
            assert mixed[name].dtype == array.dtype


@pytest.fixture(scope="module")
def hybrid():
    return small_experiment("hybrid", "decoder_only")


def test_logits_of_a_causal_row_do_not_depend_on_later_tokens_of_it_or_on_other_rows(hybrid):
    windows = random_windows(hybrid, 8, same_keys=False)
    batch = hybrid.collate(windows, 8)
    causal = ~batch["decoder_bidirectional_mask"].any(axis=1)
    assert causal.tolist() == [True, False] * 4
    params = tiny.params(hybrid.model)
    logits = jax.jit(functools.partial(apply, hybrid.model, params))
    before = np.asarray(logits(batch))
    changed = batch["decoder_input_tokens"].copy()
    changed[:, 21:] = np.where(changed[:, 21:] == 70, 71, 70)
    after = np.asarray(logits(batch | {"decoder_input_tokens": changed}))
    np.testing.assert_array_equal(before[causal, :21], after[causal, :21])
    assert (before[~causal, :21] != after[~causal, :21]).any(axis=(1, 2)).all()
    changed[causal] = batch["decoder_input_tokens"][causal]
    others = np.asarray(logits(batch | {"decoder_input_tokens": changed}))
    np.testing.assert_array_equal(before[causal], others[causal])


def test_the_shares_of_the_rows_are_those_of_the_loss(hybrid):
    """All tokens of a causal row of 40 are scored, and 6 of a masked one. As in GPT-BERT, rows have the same weight."""
    weights = hybrid.collate(random_windows(hybrid, 8, same_keys=False), 8)["decoder_loss_weights"]
    assert np.count_nonzero(weights, axis=1).tolist() == [40, 6] * 4
    np.testing.assert_allclose(weights.sum(axis=1), 40, rtol=1e-6)


def test_the_shares_of_the_rows_stay_where_the_rate_of_masks_falls():
    """From 12 masked tokens of 40 to 6, in the course of 10 batches."""
    experiment = small_experiment("hybrid:even_decay", "decoder_only", train__steps=10, optimizer__warmup_steps=0)
    windows = random_windows(experiment, 8, same_keys=False)
    for step, count in ((0, 12), (5, 9), (10, 6)):
        batch = experiment.collate(windows._replace(row_steps=np.full(8, step)), 8)
        weights = batch["decoder_loss_weights"]
        assert np.count_nonzero(weights, axis=1).tolist() == [40, count] * 4
        np.testing.assert_allclose(weights.sum(axis=1), 40, rtol=1e-6)
    [_, heldout] = [denoiser.heldout().objective for denoiser in experiment.collate.denoisers]
    assert (heldout.mask_rate, heldout.weighting) == (0.15, "token")


@pytest.mark.parametrize(("end", "alone"), [("clm", {"name": "clm"}), ("mntp", MNTP)])
def test_the_ends_are_the_objectives_alone_bit_for_bit(end, alone):
    fields = small_config("hybrid", "decoder_only")
    mixed = make_experiment(small_config(f"hybrid:{end}", "decoder_only"))
    single = make_experiment(fields | {"objective": alone})
    windows = random_windows(single, 8, same_keys=False)
    batch, expected = mixed.collate(windows, 8), single.collate(windows, 8)
    params = {"transformer": tiny.params(single.model)}
    losses = []
    for experiment, rows in ((mixed, batch), (single, expected)):
        step = jax.jit(make_eval_step(experiment.learner, bytes_of_token=None, unk=2))
        losses.append(np.asarray(step(params, rows)["loss_sum"]))
    assert losses[0] == losses[1]
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)
