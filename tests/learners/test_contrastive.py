"""SimCSE's learner: two encodings that differ by dropout alone, and what is refused."""

import functools

import jax
import pytest

from contract.errors import ConfigError
from run.metrics import summarize
from tests.learners.row_learners import batch_of, loss_of, params_of
from tests.table import small_experiment


@functools.cache
def experiment_of(name="simcse", **overrides):
    return small_experiment(name, "encoder_only", **overrides)


@pytest.fixture(scope="module")
def batch():
    return batch_of(experiment_of())


@pytest.fixture(scope="module")
def params():
    return params_of(experiment_of().learner)


def loss(learner, params, batch, key=0, train=True):
    minimized, sums = loss_of(learner, train)(params, batch, learner.weights(batch), jax.random.key(key))
    return float(minimized), summarize(sums, ["simcse"])


def test_without_mlm_the_loss_is_contrastive_and_per_text(params, batch):
    minimized, summary = loss(experiment_of().learner, params, batch)
    assert minimized == pytest.approx(summary["loss"], rel=1e-6)
    names = {"loss", "perplexity", "accuracy", "loss/simcse", "accuracy/simcse", "alignment", "uniformity"}
    assert set(summary) == names | {"contrastive_loss", "contrastive_accuracy"}
    assert summary["contrastive_loss"] == summary["loss"]  # the same tokens, or texts, have the same name with MLM
    assert summary["alignment"] > 1e-3 and summary["uniformity"] < 0


def test_evaluation_uses_dropout_with_the_same_draw_every_time(params, batch):
    learner = experiment_of().learner
    evaluated = [loss(learner, params, batch, key, train=False)[1] for key in (0, 0, 1)]
    assert evaluated[0] == evaluated[1] != evaluated[2]
    assert evaluated[0]["alignment"] > 1e-3


def test_with_mlm_both_losses_count_and_encodings_are_of_the_unmasked_text(params):
    learner = experiment_of("simcse:with_mlm").learner
    masked = batch_of(experiment_of("simcse:with_mlm"))
    assert (masked["encoder_input_tokens"] != masked["encoder_target_tokens"]).any()
    minimized, summary = loss(learner, params, masked)
    assert minimized == pytest.approx(summary["contrastive_loss"] + 0.1 * summary["loss"], rel=1e-5)
    _, unmasked = loss(learner, params, masked | {"encoder_input_tokens": masked["encoder_target_tokens"]})
    for name in ("contrastive_loss", "contrastive_accuracy", "alignment", "uniformity"):
        assert unmasked[name] == summary[name]
    assert unmasked["loss"] != summary["loss"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__dropout_rate": 0.0}, "model.dropout_rate=0.0 must be above 0 for objective.name='simcse'"),
        ({"train__batch_size": 1}, "train.batch_size=1 must be 2 or more for objective.name='simcse'"),
        ({"train__grad_accum_steps": 2}, "train.grad_accum_steps=2 must be 1 for objective.name='simcse'"),
        ({"mesh__backend": "pmap"}, "mesh.backend='pmap' must be 'jit' for objective.name='simcse'"),
    ],
)
def test_configs_without_dropout_or_without_all_negatives_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        small_experiment("simcse", "encoder_only", **overrides)
