"""Which objectives find the equations that lead to a target?

    python -m train.ablate --study=configs/studies/gym/countdown.py --out=studies/gym_countdown

data/sources/gym describes the task.

Three numbers, where Ye et al. (2024) have three to five, and instances with one answer alone.
"""

from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "countdown", ("clm", "sft", "mlm_u", "masked_diffusion"), tokens=5_000_000)
