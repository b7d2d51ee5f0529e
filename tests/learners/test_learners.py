"""The table of learners: every objective names one, and what all of them have in common."""

import dataclasses
from typing import ClassVar

import jax
import pytest

from learners import LEARNERS, make_learner
from learners.electra import ElectraLearner
from learners.learner import Learner, TokenPredictionLearner
from models.parameters import array_types
from models.transformer import init_params
from objectives import CLM, ELECTRA, OBJECTIVES
from tests.table import PAIRS, objective_of, small_experiment

KEY = jax.random.key(0)
CASES = {(objective_of(name).learner, architecture): name for name, architecture in PAIRS}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_names_a_learner(name):
    assert OBJECTIVES[name].learner in LEARNERS


def test_every_learner_is_that_of_an_objective():
    assert {learner for learner, _ in CASES} == set(LEARNERS)


def test_an_unknown_learner_is_refused_with_the_known_ones():
    @dataclasses.dataclass(frozen=True)
    class Misnamed(CLM):
        learner: ClassVar = "token_predictions"

    learner = small_experiment("clm", "decoder_only").learner
    with pytest.raises(ValueError, match=r"Misnamed.learner='token_predictions' must be one of 'classification', "):
        make_learner(Misnamed(), learner.model, learner.setup)


def test_a_subclass_of_an_objective_keeps_its_learner():
    @dataclasses.dataclass(frozen=True)
    class Variant(ELECTRA):
        pass

    learner = small_experiment("electra", "encoder_only").learner
    variant = Variant(**vars(learner.objective))
    assert type(make_learner(variant, learner.model, learner.setup)) is ElectraLearner


@pytest.mark.parametrize("method", ["init_params", "weights", "loss", "forward_flops"])
def test_a_learner_without_an_abstract_method_cannot_be_made(method):
    methods = {name: getattr(TokenPredictionLearner, name) for name in Learner.__abstractmethods__ - {method}}
    incomplete = type("Incomplete", (Learner,), methods)
    learner = small_experiment("clm", "decoder_only").learner
    with pytest.raises(TypeError, match=rf"Incomplete.*{method}"):
        incomplete.make(learner.objective, learner.model, learner.setup)


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
