"""Denominators that are not the loss weights: one division by the tokens of the texts, hidden or not."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from configs.base import denoiser, mixture
from contract.batch import check_batch
from experiment.experiment import make_experiment
from run.step import init_state, make_train_step
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.table import random_windows, small_config


def with_noise(**fields):
    return small_config("masked_diffusion:bernoulli", "encoder_only", **fields)


def test_a_step_divides_by_the_tokens_of_the_texts_for_any_number_of_microbatches():
    """The reported loss is that of weights by hand; a row of which nothing is hidden counts."""
    experiment = make_experiment(with_noise())
    windows = random_windows(experiment, 8, same_keys=False)
    lengths, quantiles = np.array([40, 3, 17, 40, 9, 1, 28, 40]), np.linspace(0, 1, 8, endpoint=False)
    quantiles[1] = 1 - 1e-12
    batch = experiment.collate(windows._replace(lengths=lengths, quantiles=quantiles), 8)
    assert not batch["encoder_loss_weights"][1].any()
    np.testing.assert_array_equal(batch["encoder_loss_denominators"].sum(axis=1), lengths)
    optimizer, learner = optax.sgd(1.0), experiment.learner
    state = init_state(learner, optimizer, 0)
    chunked = dataclasses.replace(learner.setup, loss=dataclasses.replace(learner.setup.loss, chunk_size=7))
    steps = {
        count: jax.jit(make_train_step(each, optimizer, grad_accum_steps=count, seed=0))(state, batch)
        for count, each in ((1, learner), (4, dataclasses.replace(learner, setup=chunked)))
    }
    logits = np.asarray(jax.nn.log_softmax(tiny.run(experiment.model, state.params["transformer"], batch)), np.float64)
    nats = -np.take_along_axis(logits, batch["encoder_target_tokens"][..., None], axis=2)[..., 0]
    expected = (nats * batch["encoder_loss_weights"]).sum() / lengths.sum()
    for count, (after, metrics) in steps.items():
        assert float(metrics["weight_sum"]) == lengths.sum() == float(metrics["weight_sum_by_group"].sum())
        assert float(metrics["loss_sum"] / metrics["weight_sum"]) == pytest.approx(expected, rel=1e-5), count
        same = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6)
        jax.tree.map(same, after.params, steps[1][0].params)


def test_learners_that_compute_few_logits_count_all_tokens():
    scored, counted = np.zeros((2, 12), np.float32), np.ones((2, 12), np.float32)
    scored[0, 3] = 4.0
    batch = {
        "encoder_target_tokens": np.full((2, 12), 5, np.int32),
        "encoder_loss_weights": scored,
        "encoder_loss_denominators": counted,
        "example_source": np.repeat(np.array([[0], [1]], np.int32), 12, axis=1),
    }
    learner = make_experiment(with_noise()).learner
    learner = dataclasses.replace(learner, setup=dataclasses.replace(learner.setup, most_scored=1, num_groups=2))
    sums = learner.token_loss(params_of(learner), np.zeros((2, 12, learner.model.d_model), np.float32), batch)
    assert float(sums.weight_sum) == 24 and sums.weight_sum_by_group.tolist() == [12, 12]
    assert sums.loss_sum_by_group[0] > 1 and sums.loss_sum_by_group[1] == 0


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_every_batch_of_a_mixture_has_denominators(architecture):
    """Those of other objectives are their loss weights."""
    side = architecture.partition("_")[0]
    fields = small_config("mlm" if side == "encoder" else "clm", architecture)
    rows = {"other": fields["objective"], "diffusion": with_noise()["objective"]}
    table = mixture({name: denoiser(mode="", weight=1.0, **row) for name, row in rows.items()})
    experiment = make_experiment(fields | {"objective": table})
    windows = random_windows(experiment, 4, same_keys=False)
    windows = windows._replace(lengths=np.array([30, 20, 10, 38]))
    for ids in ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]):
        batch = experiment.collate(windows._replace(denoiser_ids=np.array(ids, np.int32)), 4)
        check_batch(batch, architecture)
        for row, k in enumerate(ids):
            counts = batch[f"{side}_segment_ids"] > 0 if k else batch[f"{side}_loss_weights"]
            np.testing.assert_array_equal(batch[f"{side}_loss_denominators"][row], counts[row])
