"""Which objectives copy a Sudoku of 9 x 9 cells and fill in its two blanks?

    python -m train.ablate --study=configs/studies/gym/sudoku9.py --out=studies/gym_sudoku9

data/sources/gym describes the task.

Two blanks of 81 cells, 200 boards and their symmetries, and models of one layer, where Kim et al. (2025) have puzzles
of many blanks and models of 6M and 42M parameters: a model must above all learn to copy the given cells. The relative
positions have a bucket for each distance, so that a cell of the answer finds its cell of the prompt. An encoder fills
in the masks in the order of margins.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study, narrow_model


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "sudoku9",
        ("sft", "mlm_u"),
        tokens=1_100_000,
        measures={"exact": exact_match(), "half_solved": success_rate(exact_match(), at=0.5)},
        overrides={
            "data.path": "sudoku9:blanks=2,boards=200,train_size=8000,test_size=100",
            "data.inputs_length": 166,
            **narrow_model(num_layers=1),
            "model.relative_num_buckets": 512,
            "model.relative_max_distance": 512,
            "optimizer.schedule": "wsd",
            "optimizer.learning_rate": 1e-2,
            "train.batch_size": 16,
        },
    )
