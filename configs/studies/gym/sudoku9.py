"""Does an objective, or the order in which cells are filled in, decide Sudoku of 9 x 9 cells?

    python -m train.ablate --study=configs/studies/gym/sudoku9.py --out=studies/gym_sudoku9

data/sources/gym describes the task.

The model and the number of instances are smaller than those of Kim et al. (2025).
"""

from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "sudoku9", ("clm", "sft", "mlm_u", "masked_diffusion"), tokens=5_000_000)
