"""Learners: what is trained on a batch. LEARNERS maps the name that an objective gives its learner to the class."""

from learners.classification import ClassificationLearner
from learners.contrastive import ContrastiveLearner
from learners.electra import ElectraLearner
from learners.future_summary import FutureSummaryLearner
from learners.learner import Learner, LearnerSetup, TokenPredictionLearner
from learners.multi_token_prediction import MultiTokenPredictionLearner
from learners.next_latent import NextLatentLearner
from learners.sentence_pairs import SentencePairsLearner
from models.config import ModelConfig
from objectives.mixture import Mixture, learned_objective
from objectives.objective import Objective

LEARNERS: dict[str, type[Learner]] = {
    "classification": ClassificationLearner,
    "contrastive": ContrastiveLearner,
    "electra": ElectraLearner,
    "future_summary": FutureSummaryLearner,
    "multi_token_prediction": MultiTokenPredictionLearner,
    "next_latent": NextLatentLearner,
    "sentence_pairs": SentencePairsLearner,
    "token_prediction": TokenPredictionLearner,
}


def make_learner(objective: Objective | Mixture, model: ModelConfig, setup: LearnerSetup) -> Learner:
    """Returns the learner that `objective` names, or a row of a mixture.

    Raises ConfigError for fields that cannot work together, and ValueError for a name that is not in LEARNERS.
    """
    objective = learned_objective(objective)
    if objective.learner not in LEARNERS:
        raise ValueError(
            f"{type(objective).__name__}.learner={objective.learner!r} must be one of "
            f"{', '.join(map(repr, LEARNERS))}, the keys of learners.LEARNERS"
        )
    return LEARNERS[objective.learner].make(objective, model, setup)
