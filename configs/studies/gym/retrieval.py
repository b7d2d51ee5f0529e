"""Are values found by their keys, and keys by their values?

    python -m train.ablate --study=configs/studies/gym/retrieval.py --out=studies/gym_retrieval

data/sources/gym/facts.py describes the task.
"""

from configs.studies.base import published, success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        "retrieval",
        ("clm", "mlm", "mlm_50", "mlm_u"),
        question="Are values found by their keys, and keys by their values?",
        tokens=500_000,
        measures={
            "forward": exact_match("forward"),
            "backward": exact_match("backward"),
            "backward_learned": success_rate(exact_match("backward"), at=0.1),
        },
        published=[
            published(
                "Kitouni et al. (2024), arXiv 2406.05183, section 3.1; sizes are not given, so signs are compared",
                measure="backward",
                metric="accuracy",
                values={"clm": 0, "mlm": 22, "mlm_u": 100},
            ),
        ],
        notes="All pairs are stated; the questions about every second pair are trained on, and those about the others "
        "are asked.",
    )
