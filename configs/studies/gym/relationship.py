"""Are both neighbours of the middle of a chain known?

    python -m train.ablate --study=configs/studies/gym/relationship.py --out=studies/gym_relationship

data/sources/gym describes the task.

The task of Kitouni et al. (2024, arXiv 2406.05183) in small.
"""

from configs.studies.gym.common import BOTH_ORDERS, gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "relationship", ("clm", "mlm_50"), tokens=1_000_000, measures=BOTH_ORDERS)
