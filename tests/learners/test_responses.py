"""Heads on prompts and responses: which tokens each head predicts, where, and with which weight, as literals."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import Windows
from experiment.experiment import make_experiment
from learners.learner import TokenPredictionLearner
from learners.multi_token_prediction import future_tokens
from objectives import OBJECTIVES
from objectives.sft import SFT
from tests.learners.row_learners import gradients_of, loss_of, params_of
from tests.table import small_config, small_experiment

CONFIGS = ("future_summary", "multi_token_prediction", "next_latent")
KEY = jax.random.key(0)
EOS = 1
# In one row prompt 10 11 12 with response 13 14 15, and prompt 20 with response 21; in another a response alone.
TOKENS = np.asarray([[10, 11, 12, 13, 14, 15], [20, 21, 0, 0, 0, 0], [13, 14, 0, 0, 0, 0]], np.int32)
WINDOWS = Windows(
    TOKENS,
    np.asarray([6, 2, 2]),
    np.asarray([0, 0, 1]),
    np.zeros(3, np.uint64),
    np.zeros(3, np.int32),
    prompt_lengths=np.asarray([3, 1, 0], np.int32),
)
TARGETS = [[10, 11, 12, 13, 14, 15, EOS, 20, 21, EOS], [13, 14, EOS, 0, 0, 0, 0, 0, 0, 0]]
SCORED = [[0, 0, 0, 1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]]


@functools.cache
def experiment(config, **fields):
    return small_experiment(f"{config}:response", "decoder_only", **fields)


@functools.cache
def batch(config):
    return experiment(config).collate(WINDOWS, 2)


def first(array, length=10):
    return np.asarray(array)[..., :length].astype(int).tolist()


@pytest.mark.parametrize("config", CONFIGS)
def test_rows_are_those_of_sft_read_causally(config):
    of_sft = small_experiment("sft", "decoder_only").collate(WINDOWS, 2)
    assert batch(config).keys() == of_sft.keys() and not batch(config)["decoder_bidirectional_mask"].any()
    for name in of_sft:
        np.testing.assert_array_equal(batch(config)[name], of_sft[name], err_msg=name)
    assert first(of_sft["decoder_target_tokens"]) == TARGETS and first(of_sft["decoder_loss_weights"]) == SCORED
    assert not experiment(config).model.has_prefix


def test_each_further_head_scores_the_tokens_of_the_response_alone():
    """Its token ahead has the weight that it has as a next token, wherever it is predicted from."""
    future = future_tokens(batch("multi_token_prediction"), 3)
    assert first(future.target_tokens[1]) == [
        [11, 12, 13, 14, 15, EOS, 0, 21, EOS, 0],
        [14, EOS, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert first(future.loss_weights[1]) == [[0, 0, 1, 1, 1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert first(future.target_tokens[2]) == [[12, 13, 14, 15, EOS, 0, 0, EOS, 0, 0], [EOS, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert first(future.loss_weights[2]) == [[0, 1, 1, 1, 1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    learner = experiment("multi_token_prediction").learner
    weights = {name: float(total) for name, total in learner.weights(batch("multi_token_prediction")).items()}
    assert weights == {"future_1": 9, "future_2": 8, "future_3": 6, "future_4": 4}


def test_summaries_are_of_the_rest_of_the_response_at_scored_positions():
    """The first one is where the last token of the prompt is read. All of it is ahead there."""
    learner = experiment("future_summary").learner
    ahead = learner._ahead(batch("future_summary"))
    assert first(learner._summary_weights(batch("future_summary"), ahead)) == SCORED
    tokens = [np.asarray(ahead.ids_BxLxW[0, t])[np.asarray(ahead.is_new_BxLxW[0, t])].tolist() for t in (3, 6, 8)]
    assert tokens == [[13, 14, 15, EOS], [EOS], [21, EOS]]
    assert {name: float(x) for name, x in learner.weights(batch("future_summary")).items()} == {
        "tokens": 9,
        "summary": 9,
    }


def test_next_states_are_predicted_in_the_prompt_too_and_diverge_where_a_response_is_next():
    """Of segments of 7, 3 and 3 positions all but the first state of each are predicted, one step ahead."""
    weights = experiment("next_latent").learner.weights(batch("next_latent"))
    assert {name: float(x) for name, x in weights.items()} == {"tokens": 9, "latent_1": 10, "kl_1": 8}


@pytest.mark.parametrize("config", CONFIGS)
def test_the_loss_of_tokens_is_that_of_sft_and_no_loss_of_tokens_reads_the_prompts_targets(config):
    learner = experiment(config).learner
    params, plain = params_of(learner), batch(config)
    sft = TokenPredictionLearner(learner.objective, learner.model, learner.setup)
    alone = {"transformer": params["transformer"]}
    (_, sums), _ = gradients_of(learner)(params, plain, learner.weights(plain), KEY)
    _, of_sft = loss_of(sft)(alone, plain, sft.weights(plain), KEY)
    for name in ("loss_sum", "weight_sum", "correct_sum"):
        assert float(sums[name]) == pytest.approx(float(of_sft[name]), rel=1e-5)
    in_prompt = (plain["decoder_loss_weights"] == 0) & (plain["decoder_segment_ids"] > 0)
    targets = np.where(in_prompt, 99, plain["decoder_target_tokens"])
    other = {**plain, "decoder_target_tokens": targets}
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5),
        gradients_of(learner)(params, other, learner.weights(other), KEY),
        gradients_of(learner)(params, plain, learner.weights(plain), KEY),
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_a_prompt_that_sees_itself_is_refused_in_one_line(config):
    with pytest.raises(
        ConfigError, match=r"^data.bidirectional_inputs=True does not go with Response\w+, whose"
    ) as error:
        experiment(config, data__bidirectional_inputs=True)
    assert "\n" not in str(error.value)


def test_responses_and_texts_have_one_learner_in_a_mixture_of_equal_fields():
    fields = small_config("multi_token_prediction:response", "decoder_only")
    row = fields["objective"] | {"mode": "", "weight": 1.0}
    more = {"name": "sft", "inputs_eos": False, "mode": "", "weight": 1.0}
    fields["objective"] = {
        "name": "mixture",
        "mix_by": "example",
        "schedule": "constant",
        "denoisers": {"a": row, "b": more},
    }
    with pytest.raises(ConfigError, match=r"objective.denoisers.b \(SFT\) has inputs, masks or another order"):
        make_experiment(fields)
    fields["objective"]["denoisers"]["b"] = row | {"inputs_eos": True}
    assert make_experiment(fields).learner.objective.num_future_tokens == 4


def test_they_are_sft_with_the_fields_of_the_objectives_of_texts():
    for config in CONFIGS:
        of_texts, of_responses = OBJECTIVES[config], OBJECTIVES[f"response_{config}"]
        assert issubclass(of_responses, SFT) and of_responses.learner == of_texts.learner == config
        names = [[field.name for field in dataclasses.fields(each)] for each in (of_texts, of_responses)]
        assert set(names[1]) - set(names[0]) == {"inputs_eos"}
        assert of_responses.byte_metric == "" and of_responses.architectures == {"decoder_only"}
