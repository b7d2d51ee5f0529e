"""The fixture of files that choose and plan many runs."""

import dataclasses

import pytest

from learners.learner import TokenPredictionLearner
from models.placement import placement
from run import memory


@pytest.fixture(scope="module")
def traced_once():
    """The activations of a batch are traced once in a file, since a trace takes up to a second.

    TokenPredictionLearner reads its objective in no trace.
    """
    found, kept_bytes = {}, memory.kept_bytes

    def once(learner, params_shapes, batch):
        is_alike = type(learner) is TokenPredictionLearner
        named = dataclasses.replace(learner, objective=None) if is_alike else learner
        key = repr((named, batch, placement()))
        if key not in found:
            found[key] = kept_bytes(learner, params_shapes, batch)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "kept_bytes", once)
        yield
