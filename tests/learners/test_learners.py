"""The table of learners: every objective names one, and what all of them have in common."""

import dataclasses
from typing import ClassVar

import jax
import pytest

from learners import LEARNERS, make_learner
from models import attention, layers
from models.parameters import array_types
from models.transformer import init_params
from objectives import CLM
from tests.learners.row_learners import batch_of, params_of
from tests.table import PAIRS, objective_of, small_experiment

KEY = jax.random.key(0)
CASES = {(objective_of(name).learner, architecture): name for name, architecture in PAIRS}


def test_every_learner_is_that_of_an_objective():
    assert {learner for learner, _ in CASES} == set(LEARNERS)


def test_an_unknown_learner_is_refused_with_the_known_ones():
    @dataclasses.dataclass(frozen=True)
    class Misnamed(CLM):
        learner: ClassVar = "token_predictions"

    learner = small_experiment("clm", "decoder_only").learner
    with pytest.raises(ValueError, match=r"Misnamed.learner='token_predictions' must be one of 'classification', "):
        make_learner(Misnamed(), learner.model, learner.setup)


@pytest.mark.parametrize(("learner", "architecture"), CASES)
def test_the_transformer_is_an_entry_of_the_parameters_and_can_be_exchanged(learner, architecture):
    """It has the arrays of the experiment's model, so that any run can start from any other's (train.init_from)."""
    learner = small_experiment(CASES[learner, architecture], architecture).learner

    def parts(key):
        params = learner.init_params(key)
        transformer = learner.transformer(params)
        return params, transformer, learner.replace_transformer(params, transformer)

    params, transformer, replaced = jax.eval_shape(parts, KEY)
    assert "transformer" in params
    assert array_types(transformer) == array_types(jax.eval_shape(lambda: init_params(learner.model, KEY)))
    assert array_types(replaced) == array_types(params)


# Of a stack: embeddings, four in a layer, or six with cross-attention, and the final norm of pre-norm models.
@pytest.mark.parametrize(
    ("name", "architecture", "fields", "masks"),
    [
        ("span_corruption", "encoder_decoder", {}, (1 + 2 * 4 + 1) + (1 + 2 * 6 + 1)),
        ("multi_token_prediction", "decoder_only", {}, 1 + (2 + 3) * 4 + (1 + 3)),
        ("multi_token_prediction", "decoder_only", {"objective__heads": "sequential"}, 10 + 3 * (1 + 4 + 1)),
        ("classification", "encoder_only", {}, 9 + 1),
    ],
)
def test_no_two_dropout_masks_of_a_step_are_drawn_from_the_same_key(name, architecture, fields, masks, monkeypatch):
    """Otherwise two places would drop the same entries, such as those after the feed-forward block and within it."""
    experiment = small_experiment(name, architecture, model__dropout_rate=0.1, **fields)
    learner, keys, draw = experiment.learner, [], layers.draw_mask

    def recorded(key, shape):
        jax.debug.callback(lambda bits: keys.append(tuple(bits.tolist())), jax.random.key_data(key))
        return draw(key, shape)

    for module in (layers, attention):
        monkeypatch.setattr(module, "draw_mask", recorded)
    batch, params = batch_of(experiment, 4), params_of(learner)
    loss, _ = jax.jit(lambda key: learner.loss(params, batch, learner.weights(batch), key=key, train=True))(KEY)
    loss.block_until_ready()
    jax.effects_barrier()
    assert len(set(keys)) == len(keys) == masks
