"""The table of learners: every objective names one, and what all of them have in common."""

import dataclasses
from typing import ClassVar

import jax
import pytest

from learners import LEARNERS, make_learner
from models.parameters import array_types
from models.transformer import init_params
from objectives import CLM
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
