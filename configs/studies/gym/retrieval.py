"""Are values found by their keys, and keys by their values?

    python -m train.ablate --study=configs/studies/gym/retrieval.py --out=studies/gym_retrieval

data/sources/gym describes the task.

The training text has all pairs, and the questions about every second pair. The test has the other questions.
"""

from configs.studies.base import published
from configs.studies.gym.common import BOTH_ORDERS, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "retrieval",
        ("clm", "mlm_50", "mlm_u"),
        tokens=400_000,
        measures=BOTH_ORDERS,
        published=[
            published(
                "Kitouni et al. (2024), arXiv 2406.05183, section 3.1; sizes are not given, so signs are compared",
                measure="backward",
                metric="accuracy",
                values={"clm": 0, "mlm_u": 100},
            )
        ],
    )
