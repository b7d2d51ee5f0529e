"""A mixture with rows of a learner other than token prediction: it trains all rows, or one line says why not."""

import dataclasses
from typing import Annotated, ClassVar

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from learners import LEARNERS, make_learner
from learners.learner import TokenPredictionLearner
from objectives import OBJECTIVES, SpanCorruption
from tests.learners.row_learners import batch_of, loss_of, params_of
from tests.table import objective_of, small_config, small_experiment

V3 = "multi_token_prediction:deepseek_v3"
KEY = jax.random.key(0)
CLM = {"name": "clm", "mode": "", "weight": 1.0}
PREFIX_LM = {
    "name": "prefix_lm",
    "target_fraction": 0.25,
    "split": "fixed",
    "sentinel": False,
    "mode": "",
    "weight": 1.0,
}


class FocalLearner(TokenPredictionLearner):
    """Another loss of the tokens, in a subclass that says nothing of mixtures."""


@dataclasses.dataclass(frozen=True)
class FocalSpanCorruption(SpanCorruption):
    gamma: Annotated[float, "[0, inf)"] = 2.0

    learner: ClassVar = "focal"


@pytest.fixture(autouse=True)
def focal(monkeypatch):
    monkeypatch.setitem(LEARNERS, "focal", FocalLearner)
    monkeypatch.setitem(OBJECTIVES, "focal_sc", FocalSpanCorruption)


def ul2(**focal_rows):
    """UL2's config with the focal loss in the rows `focal_rows`, name -> gamma."""
    config = small_config("ul2", "decoder_only")
    for name, gamma in focal_rows.items():
        config["objective"]["denoisers"][name] |= {"name": "focal_sc", "gamma": gamma}
    return config


def v3(**rows):
    """DeepSeek-V3's mixture of multi-token prediction and fill-in-the-middle, with other or further rows."""
    config = small_config(V3, "decoder_only")
    config["objective"]["denoisers"] |= rows
    config["train"]["steps"] = 4  # of which the weight of the head changes in the last
    return config


def mtp(**fields):
    return v3()["objective"]["denoisers"]["mtp"] | fields


def test_a_subclass_of_token_prediction_trains_all_rows_of_ul2():
    experiment = make_experiment(ul2(r1=3.0, x1=3.0))
    assert isinstance(experiment.learner, FocalLearner) and experiment.learner.objective.gamma == 3.0
    assert experiment.denoiser_names == make_experiment(ul2()).denoiser_names


def test_the_further_head_is_trained_on_all_rows():
    """The loss and each sum are those of multi-token prediction alone, on the mixture's batch."""
    experiment = make_experiment(v3())
    alone = small_experiment("multi_token_prediction:sequential", "decoder_only")
    batch = batch_of(experiment)
    assert set(np.unique(batch["example_source"])) == {0, 1}
    learner = make_learner(alone.learner.objective, experiment.model, experiment.learner.setup)
    params = params_of(learner)
    batch["auxiliary_loss_weight"] = np.full(8, 0.3, np.float32)
    found, expected = (loss_of(each)(params, batch, each.weights(batch), KEY) for each in (experiment.learner, learner))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    sums, segments, scored = found[1], np.asarray(batch["decoder_segment_ids"]), batch["decoder_loss_weights"]
    both = (segments[:, 1:] == segments[:, :-1]) & (np.asarray(scored)[:, 1:] > 0)
    assert sums["ratios"]["loss/future_2"][1] == pytest.approx(both.sum())
    assert all(sums["weight_sum_by_group"] > 0)
    assert experiment.learner.forward_flops(40, 40) == learner.forward_flops(40, 40)


def test_the_schedule_of_a_rows_loss_weight_is_that_of_the_learner():
    """`loss_weight` of such a row is the objective's, 0.3 and later 0.1, and no factor of the row's tokens."""
    config = v3()
    assert next(iter(config["objective"]["denoisers"])) == "fim"  # the schedule is not the first row's
    experiment = make_experiment(config)
    weights = {denoiser.name: (denoiser.loss_weight, bool(denoiser.schedule)) for denoiser in experiment.denoisers}
    assert weights == {"fim": (1.0, False), "mtp": (1.0, True)}
    batch = batch_of(experiment)  # of step 3
    np.testing.assert_allclose(batch["auxiliary_loss_weight"], 0.1)
    assert np.unique(batch["decoder_loss_weights"]).tolist() == [0, 1]


def test_rows_of_equal_learners_have_a_common_schedule():
    make_experiment(v3(more=mtp()))
    with pytest.raises(
        ConfigError, match=r"denoisers.more: its schedule differs from that of .*denoisers.mtp, and one"
    ):
        make_experiment(v3(more=mtp(phase_steps=(0.5,))))


INVALID = {
    "fields of the learner that differ": (
        lambda: ul2(r1=2.0, x1=1.0),
        "denoisers.x1: its gamma differs from that of objective.denoisers.r1, and one learner trains all rows",
    ),
    "two learners": (
        lambda: v3(s=CLM | {"name": "future_summary", "summary": "order", "horizon": 4, "loss_weight": 1.0}),
        "objective.denoisers.s: its learner differs from that of objective.denoisers.mtp",
    ),
    "a prefix under a head that reads ahead": (
        lambda: v3(s=PREFIX_LM),
        r"denoisers.s \(PrefixLM\) has inputs, masks or another order, and the learner 'multi_token_prediction' of "
        "objective.denoisers.mtp trains rows without: remove it",
    ),
    "a field that the learner refuses, which is named by its row": (
        lambda: v3(mtp=mtp(num_future_tokens=65)),
        r"^objective.denoisers.mtp.num_future_tokens=65 must be at most",
    ),
    "masks under a head that reads ahead": (
        lambda: v3(m=CLM | small_config("masked_inputs", "decoder_only")["objective"]),
        r"objective.denoisers.m \(MaskedInputs\) has inputs, masks or another order",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_rows_that_one_learner_cannot_train_are_refused(case):
    config, message = INVALID[case]
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(config())
    assert len(str(error.value).splitlines()) == 1


def test_such_a_row_of_weight_0_names_no_learner():
    experiment = make_experiment(v3(mtp=mtp(weight=0.0), clm=CLM))
    assert type(experiment.learner) is TokenPredictionLearner
    assert objective_of(V3).learner == "token_prediction"  # of the class: `learned_objective` has the row's
