"""Logits at the scored positions alone give the loss, the sums and the gradients of logits at all positions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.flops import logits_flops
from tests.learners.row_learners import params_of
from tests.table import random_windows, small_experiment

LENGTH = 40
# One row for each kind of logits and of scored positions: objectives that predict in place, decoder-only denoisers,
# encoder-decoders with short targets, a mixture, rows of several examples.
GATHERING = [
    ("mlm:bert", "encoder_only", {}),
    ("mlm:roberta", "encoder_only", {"data__examples_per_row": 3, "loss__chunk_size": 3}),
    ("nsp:nsp", "encoder_only", {"loss__z_loss": 1e-2, "loss__label_smoothing": 0.1}),
    ("simcse:with_mlm", "encoder_only", {}),
    ("span_corruption:span_3_15_u_u", "decoder_only", {}),
    ("span_corruption:span_3_15_u_u", "encoder_decoder", {}),
    ("ul2:equal", "decoder_only", {}),
]


def logits_at_all_positions(learner):
    return dataclasses.replace(learner, setup=dataclasses.replace(learner.setup, most_scored=LENGTH))


@functools.cache
def inputs(experiment):
    """Parameters, states [8, 40, 32], and a batch."""
    batch = experiment.collate(random_windows(experiment, 8, same_keys=False), 8)
    hidden = np.random.default_rng(0).standard_normal((8, LENGTH, 32)).astype(np.float32)
    return params_of(experiment.learner)["transformer"], hidden, jax.tree.map(jnp.asarray, batch)


def losses_of(learner, arguments):
    """The sums of the token loss, and the gradients for parameters and states."""

    @jax.jit
    def gradients(params, hidden, batch):
        def loss(params, hidden):
            sums = learner.token_loss({"transformer": params}, hidden, batch)
            return sums.minimized_sum, sums

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, hidden)

    return gradients(*arguments)


@pytest.mark.parametrize(("name", "architecture", "overrides"), GATHERING)
def test_sums_and_gradients_equal_those_of_all_positions(name, architecture, overrides):
    experiment = small_experiment(name, architecture, **overrides)
    learner, arguments = experiment.learner, inputs(experiment)
    assert learner.num_logits(LENGTH) <= LENGTH / 2
    ours, theirs = (losses_of(each, arguments) for each in (learner, logits_at_all_positions(learner)))
    assert theirs[1].weight_sum > 8
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), ours, theirs)


def test_xla_counts_the_flops_that_the_learner_counts():
    """At 128 positions, of which 19 are scored, a layer of 64 and a table of 384 rows."""
    sizes = {"d_model": 64, "head_dim": 32, "d_ff": 256, "num_layers": 1, "scan_unroll": 1}
    overrides = {f"model__{name}": size for name, size in sizes.items()}
    experiment = small_experiment("mlm:bert", "encoder_only", data__inputs_length=128, **overrides)
    batch = jax.tree.map(jnp.asarray, experiment.collate(random_windows(experiment, 4, same_keys=False), 4))
    setup = dataclasses.replace(experiment.learner.setup, most_scored=128)
    flops = {}
    for learner in (experiment.learner, dataclasses.replace(experiment.learner, setup=setup)):
        loss = functools.partial(learner.loss, weights=learner.weights(batch), key=jax.random.key(0), train=False)
        lowered = jax.jit(lambda params, loss=loss: loss(params, batch)).lower(experiment.params_shapes)
        positions = learner.num_logits(128)
        flops[positions] = lowered.cost_analysis()["flops"] / 4
        assert flops[positions] == pytest.approx(learner.forward_flops(128, 0), rel=0.1)
    assert flops[128] - flops[19] == pytest.approx(logits_flops(experiment.model, 128 - 19), rel=0.12)
