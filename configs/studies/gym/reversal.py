"""Is a fact that was read in one order known in the other?

    python -m train.ablate --study=configs/studies/gym/reversal.py --out=studies/gym_reversal

data/sources/gym/facts.py describes the task.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        "reversal",
        ("clm", "span_corruption", "span_corruption_roll", "mlm_50", "mlm_u"),
        question="Is a fact that was read in one order known in the other?",
        tokens=500_000,
        measures={
            "forward": exact_match("forward"),
            "backward": exact_match("backward"),
            "backward_learned": success_rate(exact_match("backward"), at=0.1),
        },
        notes="Of each fact with one order, one of four wordings is not trained on and is asked, in the order of the "
        "training text (forward) and in the other (backward). Without random_roll the end of every "
        "instance is hidden, as with UL2's x3, and never its start.",
    )
