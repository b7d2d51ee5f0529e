"""Which objectives copy the symbols among blanks?

    python -m train.ablate --study=configs/studies/gym/selective_copy.py --out=studies/gym_selective_copy

data/sources/gym describes the task.

The task is known for telling architectures apart (Gu & Dao 2023); no figures of objectives are published.
"""

from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "selective_copy", ("clm", "mlm_u"), tokens=1_000_000)
