"""The classification learner: the position that it reads, what it reports, dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.heads import Classifier
from models.parameters import bind_module
from objectives.losses.row_cross_entropy import Rows, f1_counts
from run.metrics import summarize
from tests.learners.row_learners import batch_of, class_logits, loss_of, nll, params_of
from tests.table import small_experiment


@functools.cache
def experiment_of(architecture, **overrides):
    return small_experiment("classification", architecture, **overrides)


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "encoder_decoder"])
def test_the_class_is_predicted_at_cls_or_where_the_whole_text_has_been_read(architecture):
    experiment = experiment_of(architecture)
    learner, batch = experiment.learner, batch_of(experiment)
    params, labels = params_of(learner), np.asarray(batch["sentence_labels"])
    assert set(labels.tolist()) == {0, 1}
    loss, sums = loss_of(learner)(params, batch, learner.weights(batch), jax.random.key(0))
    positions = np.zeros(8, int)
    if architecture == "decoder_only":  # inputs are shifted right, so the last position has read the last token
        positions = np.asarray(batch["decoder_segment_ids"] > 0).sum(axis=1) - 1
        assert len(set(positions.tolist())) > 3
    logits = class_logits(learner.model, params["transformer"], params["classifier"], batch, positions)
    summary = summarize(sums, ["classification"])
    assert summary["loss"] == pytest.approx(nll(logits, labels).mean(), rel=1e-4)
    assert float(loss) == pytest.approx(summary["loss"], rel=1e-6)
    assert summary["accuracy"] == (logits.argmax(axis=1) == labels).mean()
    numerators, denominators = f1_counts(jnp.asarray(logits), jnp.asarray(labels), Rows(jnp.ones(len(labels)), None))
    f1 = (numerators / denominators)[denominators > 0]
    assert summary["macro_f1"] == pytest.approx(float(f1.mean()), rel=1e-6)
    assert learner.language_model(params) is None


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "encoder_decoder"])
def test_the_class_is_predicted_from_the_mean_of_the_states_that_are_no_padding(architecture):
    learner = experiment_of(architecture, objective__pooling="mean").learner
    batch, params = batch_of(experiment_of(architecture)), params_of(experiment_of(architecture).learner)
    transformer, stack = learner.bind_transformer(params), architecture.partition("_")[0]
    states = np.asarray(transformer.encode(batch) if stack == "encoder" else transformer.hidden(batch))
    lengths = np.asarray(batch[f"{stack}_segment_ids"] > 0).sum(axis=1)
    assert len(set(lengths.tolist())) > 3
    means = np.stack([row[:length].mean(axis=0) for row, length in zip(states, lengths, strict=True)])
    logits = np.asarray(bind_module(Classifier, learner.model, 2, params=params["classifier"])(jnp.asarray(means)))
    loss, _ = loss_of(learner)(params, batch, learner.weights(batch), jax.random.key(0))
    assert float(loss) == pytest.approx(nll(logits, np.asarray(batch["sentence_labels"])).mean(), rel=1e-4)


def test_macro_f1_over_batches_is_that_of_all_their_rows():
    """Not the mean of the batches' macro F1. Labels 0 0 1 and 1 1 2 2, predictions 0 1 1 and 1 1 2 1."""

    def sums(predicted, labels):
        logits = jax.nn.one_hot(jnp.asarray(predicted), 4)
        totals = {name: 0.0 for name in ("loss_sum", "weight_sum", "correct_sum")}
        zeros = {f"{name}_by_group": np.zeros(1) for name in totals}
        return (
            totals
            | zeros
            | {"ratios": {"macro_f1": f1_counts(logits, jnp.asarray(labels), Rows(jnp.ones(len(labels)), None))}}
        )

    added = jax.tree.map(jnp.add, sums([0, 1, 1], [0, 0, 1]), sums([1, 1, 2, 1], [1, 1, 2, 2]))
    # Class 0: TP 1, FN 1: 2/3. Class 1: TP 3, FP 2: 6/8. Class 2: TP 1, FN 1: 2/3. Class 3 does not occur.
    assert summarize(added, ["x"])["macro_f1"] == pytest.approx((2 / 3 + 6 / 8 + 2 / 3) / 3, rel=1e-6)


def test_dropout_is_for_training_only():
    learner = experiment_of("encoder_only", model__dropout_rate=0.5).learner
    params, batch = params_of(learner), batch_of(experiment_of("encoder_only"))
    results = {
        train: [
            float(loss_of(learner, train)(params, batch, learner.weights(batch), jax.random.key(key))[0])
            for key in (0, 1)
        ]
        for train in (True, False)
    }
    assert results[True][0] != results[True][1] and results[False][0] == results[False][1]
