"""The token loss with a teacher: mixed with the hard loss by position, with its weights and its one denominator."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from learners import LEARNERS
from learners.learner import TokenPredictionLearner
from run.step import init_state, make_eval_step, make_train_step
from tests.learners.row_learners import batch_of, gradients_of, loss_of, params_of
from tests.models import tiny
from tests.objectives.losses.test_chunked_cross_entropy import array_sizes
from tests.objectives.losses.test_distillation import expected
from tests.table import small_config

DISTILLED = {"distillation__teacher": "a", "model__num_layers": 1}


def experiment_of(name, architecture, **fields):
    return make_experiment(small_config(name, architecture, **DISTILLED | fields))


def with_teacher(experiment, **sizes):
    """The learner with a teacher of other sizes, and the teacher's parameters."""
    setup = experiment.learner.setup
    model = dataclasses.replace(experiment.model, **{"d_model": 16, "num_layers": 3} | sizes)
    learner = dataclasses.replace(experiment.learner, setup=dataclasses.replace(setup, teacher=model))
    teacher = dataclasses.replace(experiment.learner, model=model)
    return learner, params_of(teacher, seed=5)["transformer"]


def loss_in(learner, batch):
    """params -> (loss, Sums); a mixture's learner has no hash."""

    def loss(params):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=True)

    return loss


def loss_and_sums(learner, params, batch):
    return jax.jit(loss_in(learner, batch))(params)


def gradients(learner, params, batch):
    """((loss, Sums), gradients)."""
    return jax.jit(jax.value_and_grad(loss_in(learner, batch), has_aux=True))(params)


def logits_of(model, params, batch):
    return np.asarray(tiny.run(model, params, batch), np.float64)


def expected_loss(learner, params, teacher, batch):
    """(hard loss, soft loss), position by position in float64, from the logits at all positions."""
    side, options = ("decoder" if learner.model.has_decoder else "encoder"), learner.setup.distillation
    weights = np.asarray(batch[f"{side}_loss_weights"], np.float64)
    targets = np.asarray(batch[f"{side}_target_tokens"])
    total = np.asarray(batch.get(f"{side}_loss_denominators", weights), np.float64).sum()
    logits = logits_of(learner.model, params, batch)
    # Its attention is not annealed with the student's.
    annealing = {"decoder_annealing_share", "decoder_annealing_key"}
    opened = {field: values for field, values in batch.items() if field not in annealing}
    teacher_logits = logits_of(learner.setup.teacher, teacher, opened)
    hard = soft = 0.0
    for where in zip(*np.nonzero(weights), strict=True):
        q, p = logits[where], teacher_logits[where]
        log_z = np.log(np.exp(q - q.max()).sum()) + q.max()
        hard += weights[where] * (log_z - q[targets[where]] + learner.setup.loss.z_loss * log_z**2)
        t, k = options.temperature, options.top_k
        soft += weights[where] * t**2 * expected(q, p, options.divergence, t, k)
    return hard / total, soft / total


CASES = [
    ("mlm", "encoder_only", {"distillation__divergence": "reverse"}),
    ("span_corruption", "encoder_decoder", {"distillation__divergence": "jensen_shannon", "distillation__top_k": 5}),
    ("prefix_lm", "decoder_only", {"distillation__weight": 1.0, "distillation__top_k": 3, "loss__chunk_size": 7}),
]
MORE_CASES = [
    ("clm", "decoder_only", {"distillation__weight": 0.3, "distillation__temperature": 2.0}),
    ("ul2", "encoder_decoder", {"distillation__weight": 0.9}),
    ("ul2", "decoder_only", {}),
    ("hybrid", "decoder_only", {"model__tie_embeddings": True}),
    ("masked_diffusion", "encoder_only", {"loss__chunk_size": 7}),
    ("masked_diffusion:bernoulli", "encoder_only", {"distillation__temperature": 0.7}),
    ("block_diffusion", "decoder_only", {}),
    ("hybrid:mntp", "decoder_only", {"data__attention_annealing_steps": 8, "data__documents": "join"}),
]


@pytest.mark.parametrize(
    ("name", "architecture", "fields"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)]
)
def test_the_loss_is_the_weighted_sum_of_both_at_the_scored_positions(name, architecture, fields):
    experiment = experiment_of(name, architecture, **fields)
    learner, teacher = with_teacher(experiment)
    params, batch = params_of(experiment.learner), batch_of(experiment, 4)
    weight = learner.setup.distillation.weight
    (loss, sums), gradient = gradients(learner, params | {"teacher": teacher}, batch)
    hard, soft = expected_loss(learner, params, teacher, batch)
    assert soft > 0.01 and float(loss) == pytest.approx((1 - weight) * hard + weight * soft, rel=1e-4)
    total, count = sums["ratios"]["distillation_loss"]
    assert float(total / count) == pytest.approx(soft, rel=1e-4)
    # What is reported otherwise, and evaluated, is that of the targets alone.
    plain, plain_sums = loss_and_sums(experiment.learner, params, batch)
    assert float(plain) == pytest.approx(hard, rel=1e-4) and "ratios" not in plain_sums
    for key in ("loss_sum", "weight_sum", "correct_sum", "loss_sum_by_group", "weight_sum_by_group"):
        np.testing.assert_allclose(sums[key], plain_sums[key], rtol=1e-5)
    evaluated = jax.jit(make_eval_step(learner, bytes_of_token=None, unk=0))(params, batch)
    assert "distillation_loss" not in evaluated["ratios"]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["teacher"])), "the teacher has no gradient"


@pytest.mark.parametrize(
    ("divergence", "fields"),
    [("forward", {"loss__chunk_size": 7}), ("reverse", {"distillation__top_k": 4}), ("jensen_shannon", {})],
)
def test_a_teacher_equal_to_the_model_adds_no_gradient(divergence, fields):
    fields = {"distillation__weight": 1.0, "distillation__divergence": divergence} | fields
    experiment = experiment_of("clm", "decoder_only", **fields)
    learner, _ = with_teacher(experiment, d_model=experiment.model.d_model, num_layers=experiment.model.num_layers)
    params, batch = params_of(learner), batch_of(experiment, 4)
    both = params | {"teacher": params["transformer"]}
    (loss, _), gradients = gradients_of(learner)(both, batch, learner.weights(batch), jax.random.key(0))
    assert abs(float(loss)) < 1e-6
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradients)) < 2e-6


def updates(experiment, accumulation, **changes):
    """The update of a step with a teacher, and its metrics."""
    learner, teacher = with_teacher(experiment)
    loss = dataclasses.replace(learner.setup.loss, **changes)
    learner = dataclasses.replace(learner, setup=dataclasses.replace(learner.setup, loss=loss))
    optimizer, batch = optax.sgd(1.0), batch_of(experiment, 8)
    step = jax.jit(make_train_step(learner, optimizer, grad_accum_steps=accumulation, seed=0))
    state = init_state(experiment.learner, optimizer, 0, params=params_of(experiment.learner))
    after, metrics = step(state, batch, {"teacher": teacher})
    return jax.tree.map(np.subtract, after.params, state.params), metrics


def assert_same_update(found, reference):
    for ours, theirs in zip(*map(jax.tree.leaves, (found[0], reference[0])), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4 * np.abs(theirs).max())
    total, count = found[1]["ratios"]["distillation_loss"]
    expected_total, expected_count = reference[1]["ratios"]["distillation_loss"]
    assert float(count) == float(expected_count) and float(total) == pytest.approx(float(expected_total), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture", "splits"),
    [
        ("clm", "decoder_only", ((2, 0), (4, 0), (1, 7), (1, 1000), (2, 3))),
        ("masked_diffusion:bernoulli", "encoder_only", ((4, 7),)),
        ("span_corruption", "encoder_decoder", ((2, 0),)),
    ],
)
def test_updates_do_not_depend_on_chunks_and_microbatches(name, architecture, splits):
    experiment = experiment_of(name, architecture, distillation__top_k=6)
    reference = updates(experiment, 1)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(reference[0])) > 1e-3
    for accumulation, chunk_size in splits:
        assert_same_update(updates(experiment, accumulation, chunk_size=chunk_size), reference)


def test_no_array_of_a_chunked_loss_has_an_entry_for_each_position_and_word():
    """Neither of the model nor of the teacher, in the jaxpr of the step; without chunks there are several."""
    experiment = experiment_of("clm", "decoder_only", model__vocab_size=4096)

    def largest(chunk_size):
        learner, teacher = with_teacher(experiment)
        loss = dataclasses.replace(learner.setup.loss, chunk_size=chunk_size)
        learner = dataclasses.replace(learner, setup=dataclasses.replace(learner.setup, loss=loss))
        batch, params = batch_of(experiment, 8), params_of(learner)
        gradient = jax.grad(lambda params: learner.loss(
            params | {"teacher": teacher}, batch, learner.weights(batch), key=jax.random.key(0), train=True
        )[0])  # fmt: skip
        return max(array_sizes(jax.make_jaxpr(gradient)(params).jaxpr))

    assert largest(0) == 8 * 40 * 4096 and largest(5) == 8 * 5 * 4096


def test_tables_of_other_numbers_of_padding_rows_are_compared_at_the_rows_of_both():
    experiment = experiment_of("clm", "decoder_only")
    size = experiment.model.vocab_size
    learner, teacher = with_teacher(experiment, vocab_size=size + 128)
    params, batch = params_of(learner) | {"teacher": teacher}, batch_of(experiment, 4)
    loss, _ = loss_of(learner)(params, batch, learner.weights(batch), jax.random.key(0))
    cut = teacher | {"logits_dense": {"kernel": teacher["logits_dense"]["kernel"][:, :size]}}
    cut |= {"token_embedder": {"embedding": teacher["token_embedder"]["embedding"][:size]}}
    smaller, _ = with_teacher(experiment)
    of_cut, _ = loss_of(smaller)(params | {"teacher": cut}, batch, learner.weights(batch), jax.random.key(0))
    assert float(loss) == pytest.approx(float(of_cut), rel=1e-5)


def test_the_hard_loss_is_over_all_rows_of_the_models_table():
    """Over those too that the teacher's table lacks."""
    experiment = experiment_of("clm", "decoder_only")
    learner, teacher = with_teacher(experiment, vocab_size=experiment.vocab.size)
    params, batch = params_of(experiment.learner), batch_of(experiment, 4)
    _, sums = loss_and_sums(learner, params | {"teacher": teacher}, batch)
    _, plain = loss_and_sums(experiment.learner, params, batch)
    assert experiment.vocab.size < experiment.model.vocab_size
    assert float(sums["loss_sum"]) == pytest.approx(float(plain["loss_sum"]), rel=1e-5)


@pytest.mark.slow
def test_the_teacher_has_no_dropout_and_the_model_computes_in_bfloat16():
    """A soft loss in bfloat16 is near that in float32. Two keys of dropout change the model's part alone."""
    losses = {}
    for precision in ("float32", "bfloat16"):
        fields = small_config("clm", "decoder_only", **DISTILLED, model__dropout_rate=0.3, distillation__weight=1.0)
        experiment = make_experiment(fields | {"precision": precision})
        learner, teacher = with_teacher(experiment, dropout_rate=0.0)
        params, batch = params_of(learner) | {"teacher": teacher}, batch_of(experiment, 4)
        of_key = functools.partial(loss_of(learner), params, batch, learner.weights(batch))
        losses[precision] = [float(of_key(jax.random.key(k))[0]) for k in (0, 0, 1)]
    first, again, other = losses["float32"]
    assert first == again != other
    assert losses["bfloat16"][0] == pytest.approx(first, rel=0.05)


def test_other_losses_of_a_learner_stay_whole():
    """With weight 1 the loss of sentence pairs, and of a summary, is the teacher's, and the auxiliary loss."""
    for name, architecture, ratio in (
        ("nsp", "encoder_only", "pair_loss"),
        ("future_summary", "decoder_only", "order_loss"),
    ):
        experiment = experiment_of(name, architecture, distillation__weight=1.0)
        learner, teacher = with_teacher(experiment)
        params, batch = params_of(learner), batch_of(experiment, 4)
        weights, key = learner.weights(batch), jax.random.key(0)
        loss, sums = loss_of(learner)(params | {"teacher": teacher}, batch, weights, key)
        auxiliary, soft = (float(a / b) for a, b in (sums["ratios"][ratio], sums["ratios"]["distillation_loss"]))
        factor = getattr(experiment.learner.objective, "loss_weight", 1.0)
        assert float(loss) == pytest.approx(factor * auxiliary + soft, rel=1e-5)


def test_learners_without_a_token_loss_refuse_a_teacher_in_one_line():
    for name, architecture in (
        ("simcse", "encoder_only"),
        ("classification", "encoder_only"),
        ("electra", "encoder_only"),
        ("multi_token_prediction", "decoder_only"),
    ):
        with pytest.raises(ConfigError, match=r"^distillation.teacher='a' does not go with ") as error:
            experiment_of(name, architecture, model__num_layers=2, model__dropout_rate=0.1)
        assert "\n" not in str(error.value)
    with_loss = {name for name, learner in LEARNERS.items() if learner.has_token_loss}
    assert with_loss == {"token_prediction", "future_summary", "next_latent", "sentence_pairs"}
    learner = experiment_of("clm", "decoder_only").learner
    focal = type("FocalLearner", (TokenPredictionLearner,), {})  # its loss may not be token_loss
    with pytest.raises(ConfigError, match=r"does not go with CLM \(FocalLearner\), whose loss"):
        focal.make(learner.objective, learner.model, learner.setup)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("divergence", "backward", r"must be one of 'forward', 'reverse', 'jensen_shannon'"),
        ("divergence", "revers", r"did you mean 'reverse'\?"),
        ("weight", 1.5, r"distillation.weight=1.5 must be "),
        ("weight", -0.1, r"distillation.weight=-0.1 must be "),
        ("temperature", 0.0, r"distillation.temperature=0.0 must be "),
        ("top_k", -1, r"distillation.top_k=-1 must be "),
        ("teacher", 5, r"distillation.teacher=5 must be of type str"),
    ],
)
def test_values_out_of_range_are_one_line(field, value, message):
    with pytest.raises(ConfigError, match=message) as error:
        experiment_of("clm", "decoder_only", **{f"distillation__{field}": value})
    assert "\n" not in str(error.value)
