"""Which objectives solve Sudoku?

    python -m train.ablate --study=configs/studies/gym/sudoku4.py --out=studies/gym_sudoku4

data/sources/gym describes the task.

An encoder fills in the cell with the largest margin first, and a decoder writes the cells by row. 4 x 4 cells, where
Kim et al. (2025) have 9 x 9.
"""

from configs.studies.base import published
from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "sudoku4",
        ("clm", "sft", "mlm_u"),
        tokens=1_400_000,
        published=[
            published(
                "Kim et al. (2025), arXiv 2502.06768, table 2: 9 x 9 cells; masked diffusion of 6M parameters with "
                "margins 89.5, a causal model of 42M parameters 9.7",
                measure="exact",
                metric="solved",
                better_than=[("mlm_u", "clm")],
            )
        ],
    )
