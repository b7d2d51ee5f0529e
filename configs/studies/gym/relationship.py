"""Are both neighbours of the middle of a chain known?

    python -m train.ablate --study=configs/studies/gym/relationship.py --out=studies/gym_relationship

data/sources/gym/facts.py describes the task.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        "relationship",
        ("clm", "mlm", "mlm_50", "mlm_u"),
        question="Are both neighbours of the middle of a chain known?",
        tokens=500_000,
        measures={
            "forward": exact_match("forward"),
            "backward": exact_match("backward"),
            "backward_learned": success_rate(exact_match("backward"), at=0.1),
        },
        notes="The task of Kitouni et al. (2024, arXiv 2406.05183) in small.",
    )
