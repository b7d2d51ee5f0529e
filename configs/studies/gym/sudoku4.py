"""Does an objective, or the order in which cells are filled in, decide Sudoku?

    python -m train.ablate --study=configs/studies/gym/sudoku4.py --out=studies/gym_sudoku4

data/sources/gym describes the task.

The first measure fills in the cell with the largest margin first; a decoder writes the cells by row. 4 x 4 cells, where
the papers have 9 x 9.
"""

from configs.studies.base import published, success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "sudoku4",
        ("mlm_u", "mlm_50", "clm", "sft"),
        measures={
            "exact": exact_match(),
            "solved": success_rate(exact_match(), at=0.9),
            "left_to_right": exact_match(order="left_to_right", only=("mlm_u", "mlm_50")),
            "once": exact_match(order="once", only=("mlm_u", "mlm_50")),
        },
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
