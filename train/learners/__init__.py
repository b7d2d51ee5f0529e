"""Which learner an objective has: its own by this table, or else the prediction of the tokens that are scored."""

from collections.abc import Callable
from typing import Any

from models.config import ModelConfig
from objectives import ELECTRA, NSP, SOP, Classification, MultiTokenPrediction, SimCSE
from train.config import ExperimentConfig
from train.learners.classification import ClassificationLearner
from train.learners.contrastive import ContrastiveLearner
from train.learners.electra import ElectraLearner
from train.learners.learner import Learner
from train.learners.multi_token_prediction import MultiTokenLearner
from train.learners.sentence_pairs import SentencePairsLearner
from train.learners.token_prediction import TokenPrediction

# By the objective's class. Each is called as (objective, model, config, num_denoisers); it raises ConfigError for
# fields
# that cannot work together.
LEARNERS: dict[type, Callable[[Any, ModelConfig, ExperimentConfig, int], Learner]] = {
    Classification: ClassificationLearner.make,
    ELECTRA: ElectraLearner.make,
    MultiTokenPrediction: MultiTokenLearner.make,
    NSP: SentencePairsLearner.make,
    SOP: SentencePairsLearner.make,
    SimCSE: ContrastiveLearner.make,
}


def make_learner(objective: Any, model: ModelConfig, config: ExperimentConfig, num_denoisers: int) -> Learner:
    """The learner of `objective`, whose table of denoisers has `num_denoisers` rows."""
    make = LEARNERS.get(type(objective), TokenPrediction.make)
    return make(objective, model, config, num_denoisers)
