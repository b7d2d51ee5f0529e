"""CLM with masked inputs: a row by hand, how many tokens are hidden, CLM at rate 0, evaluations that hide nothing."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import rng
from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from experiment.experiment import make_experiment
from objectives import CLM, MNTP, Denoiser, MaskedInputs
from objectives.objective import RowShape
from objectives.rows.collate import Collator
from run.compiled_run import make_run
from run.evaluation import evaluate
from run.step import make_eval_step
from show.examples import shown_tokens
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.objectives.helpers import collator, random_keys, random_windows, vocab
from tests.small_fields import small_config
from tests.table import reads_corpus

VOCAB = vocab()
EOS, MASK = VOCAB.eos, VOCAB.mask
FIXED, UNIFORM = MaskedInputs(0.15), MaskedInputs(0.5, "uniform")


def collate(objective, windows, width, rows, **options):
    return collator(objective, "decoder_only", inputs=width, documents="pack", **options)(windows, rows)


def test_a_packed_row_by_hand(monkeypatch):
    """Of 10 11 12 13 EOS the 11 and the 12 are hidden, and of 20 21 the 20. Each text's last token is never read."""
    hidden = np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]) > 0
    monkeypatch.setattr(rng, "choose_mask", lambda keys, allowed, counts: hidden)
    tokens = np.array([[10, 11, 12, 13, EOS], [20, 21, 7, 7, 7]], np.int32)
    windows = Windows(tokens, np.array([5, 2]), np.zeros(2, int), random_keys(2), np.zeros(2, np.int32))
    batch = collate(FIXED, windows, 9, 1)
    check_batch(batch, "decoder_only", MASK)
    expected = {
        "decoder_target_tokens": [10, 11, 12, 13, EOS, 20, 21, 0, 0],
        "decoder_input_tokens": [0, 10, MASK, MASK, 13, 0, MASK, 0, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 1, 1, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 1, 2, 2, 0, 0],
        "decoder_positions": [0, 1, 2, 3, 4, 0, 1, 0, 0],
        "decoder_bidirectional_mask": [0] * 9,
    }
    for name, row in expected.items():
        assert batch[name][0].tolist() == row, name


def test_show_counts_the_masks_that_are_read():
    """A text's last token is never read: it is shown as itself unless all others are hidden."""
    tokens, lengths = np.arange(10, 26, dtype=np.int32).reshape(2, 8), np.array([8, 5])
    windows = Windows(tokens, lengths, np.zeros(2, int), random_keys(2), np.zeros(2, np.int32))
    batch = collate(FIXED, windows, 13, 1)
    shown = shown_tokens(batch, VOCAB)
    assert (shown == MASK).sum() == (batch["decoder_input_tokens"] == MASK).sum() > 0
    assert shown[0, [7, 12]].tolist() == [17, 22]


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1), st.integers(1, 40), st.integers(0, 2**32))
def test_the_number_of_hidden_tokens_is_the_rounded_share_of_those_that_are_read(rate, length, seed):
    lengths = np.full(64, length)
    hidden = MaskedInputs(rate).hidden_mask(np.zeros((64, 40), np.int32), lengths, random_keys(64, seed), VOCAB)
    assert not hidden[:, length - 1 :].any()
    assert set(hidden.sum(axis=1)) <= {np.floor(rate * (length - 1)), np.ceil(rate * (length - 1))}


def test_every_token_that_is_read_is_hidden_at_the_rate():
    """20,000 texts of 12 tokens; five standard errors of a share are 0.013 at most."""
    keys, lengths = random_keys(20_000), np.full(20_000, 12)
    hidden = FIXED.hidden_mask(np.zeros((20_000, 12), np.int32), lengths, keys, VOCAB)
    np.testing.assert_allclose(hidden.mean(axis=0), [0.15] * 11 + [0], atol=0.013)
    counts = np.bincount(hidden.sum(axis=1), minlength=12)  # 1.65 of 11
    np.testing.assert_allclose(counts / 20_000, [0, 0.35, 0.65] + [0] * 9, atol=0.017)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_uniform_rates_hide_all_shares_up_to_twice_the_mean_equally_often(rate):
    """Of 10 tokens that are read, P(k hidden) is the mean of the two neighbouring roundings of a uniform share."""
    keys, lengths = random_keys(20_000), np.full(20_000, 11)
    hidden = MaskedInputs(rate, "uniform").hidden_mask(np.zeros((20_000, 11), np.int32), lengths, keys, VOCAB)
    most = round(20 * rate)  # k = int(s + U) with s uniform in [0, most]: a triangle around each whole number
    expected = np.where(np.arange(11) <= most, 1 / most, 0)
    expected[[0, most]] /= 2
    np.testing.assert_allclose(np.bincount(hidden.sum(axis=1), minlength=11) / 20_000, expected, atol=0.018)
    np.testing.assert_allclose(hidden.mean(axis=0), [rate] * 10 + [0], atol=0.018)


@pytest.mark.parametrize("objective", [FIXED, UNIFORM])
def test_batches_differ_from_clms_in_hidden_inputs_alone(objective):
    windows = random_windows(np.random.default_rng(0), [30, 1, 17, 64], row_ids=[0, 0, 0, 1])
    batch, of_clm = (collate(each, windows, 64, 2) for each in (objective, CLM()))
    assert batch.keys() == of_clm.keys()
    for name in batch.keys() - {"decoder_input_tokens"}:
        np.testing.assert_array_equal(batch[name], of_clm[name], err_msg=name)
    differ = batch["decoder_input_tokens"] != of_clm["decoder_input_tokens"]
    assert (batch["decoder_input_tokens"][differ] == MASK).all()
    hidden = objective.hidden_mask(windows.tokens, windows.lengths, windows.keys, VOCAB)
    assert differ.sum() == hidden.sum() > 0 and not differ[batch["decoder_positions"] == 0].any()


@pytest.mark.parametrize("count", ["probabilistic", "uniform"])
def test_rate_0_is_clm_bit_for_bit(count):
    """Batches, the program of a step and its loss, so whole runs."""
    fields = small_config("masked_inputs", "decoder_only")
    of_rate_0 = fields | {"objective": {"name": "masked_inputs", "mask_rate": 0.0, "mask_count": count}}
    masked, plain = (make_experiment(each) for each in (of_rate_0, fields | {"objective": {"name": "clm"}}))
    assert masked.model == plain.model
    specs = [dataclasses.replace(experiment.window_specs[0], name="x") for experiment in (masked, plain)]
    assert specs[0] == specs[1]
    assert masked.learner.setup.most_scored == plain.learner.setup.most_scored
    windows = random_windows(np.random.default_rng(1), [40, 25, 15], row_ids=[0, 1, 1])
    windows = windows._replace(keys=random_keys(3))
    params, losses = {"transformer": tiny.params(plain.model)}, []
    for experiment in (masked, plain):
        step = jax.jit(make_eval_step(experiment.learner, bytes_of_token=None, unk=2))
        losses.append(np.asarray(step(params, experiment.collate(windows, 2))["loss_sum"]))
    assert losses[0] == losses[1]
    batch, expected = masked.collate(windows, 2), plain.collate(windows, 2)
    assert batch.keys() == expected.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)
        assert batch[name].dtype == expected[name].dtype


@pytest.mark.parametrize("variant", ["probabilistic", "uniform"])
def test_evaluations_are_those_of_clm(corpus, variant):
    def metrics(name):
        fields = small_config(name, "decoder_only", **reads_corpus(name, corpus))
        run = make_run(make_experiment(fields), show_progress=False)
        return evaluate(run, params_of(run.experiment.learner))

    found, expected = metrics(f"masked_inputs:{variant}"), metrics("clm")
    renamed = {name.replace("masked_inputs", "clm"): value for name, value in found.items()}
    assert renamed == expected and "bits_per_byte" in expected


def test_rows_of_a_mixture():
    """In a batch with rows of MNTP and CLM the rows are the same as alone."""
    objectives = {"masked": FIXED, "clm": CLM(), "mntp": MNTP(0.3, 1.0, 0.0, "token")}
    table = [Denoiser(name, name, each, 1.0, "", 1.0) for name, each in objectives.items()]
    windows = random_windows(np.random.default_rng(2), [20, 20, 20], denoiser_ids=[0, 1, 2])
    shape = RowShape("decoder_only", 20, 0, 1)
    spec = collator(FIXED, "decoder_only", inputs=20).batch_spec
    batch = Collator(tuple(table), spec, shape, VOCAB, False)(windows, 3)
    check_batch(batch, "decoder_only", MASK)
    one = windows._replace(denoiser_ids=np.zeros(3, np.int32))
    for row, denoiser in enumerate(table):
        alone = Collator((denoiser,), spec, shape, VOCAB, False)(one, 3)
        for name in batch.keys() - {"example_source"}:
            np.testing.assert_array_equal(batch[name][row], alone[name][row], err_msg=name)


def test_rates_above_1_are_refused():
    MaskedInputs(1.0).check("objective")
    with pytest.raises(ConfigError, match=r"objective.mask_rate=0.6 must be 0.5 or less with objective.mask_count='un"):
        MaskedInputs(0.6, "uniform").check("objective")
    with pytest.raises(ConfigError, match=r"objective.mask_rate"):
        MaskedInputs(1.1).check("objective")
