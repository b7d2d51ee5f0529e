"""Which objectives recall the values of several keys?

    python -m train.ablate --study=configs/studies/gym/mqar.py --out=studies/gym_mqar

data/sources/gym describes the task.

The task is known for telling architectures apart (Arora et al. 2023); no figures of objectives are published.
"""

from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "mqar", ("clm", "span_corruption", "mlm", "mlm_u"))
