"""Learners: what is trained on a batch. LEARNERS maps the name that an objective gives its learner to the class."""

import re

from contract.errors import ConfigError
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
    learned = learned_objective(objective)
    if learned.learner not in LEARNERS:
        raise ValueError(
            f"{type(learned).__name__}.learner={learned.learner!r} must be one of "
            f"{', '.join(map(repr, LEARNERS))}, the keys of learners.LEARNERS"
        )
    try:
        return LEARNERS[learned.learner].make(learned, model, setup)
    except ConfigError as error:
        raise _of_row(error, objective, learned) from None


def _of_row(error: ConfigError, objective: Objective | Mixture, learned: Objective | Mixture) -> ConfigError:
    """Returns an error of a learner, which names the fields of the row of a mixture that it is of."""
    if not isinstance(objective, Mixture) or learned is objective:
        return error
    row = next(name for name, row in objective.drawn.items() if row.objective is learned)
    return ConfigError(re.sub(r"(?<![\w.])objective\.(?=\w)", f"objective.denoisers.{row}.", str(error)))
