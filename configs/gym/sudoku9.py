"""Sudoku of 9 x 9 cells.

    python -m train.main --config=configs/gym/sudoku9.py:masked_diffusion --workdir=runs/sudoku9
    python -m train.evaluate --workdir=runs/sudoku9 --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/sudoku9.py.
"""

from configs.gym.common import gym

get_config = gym("sudoku9", length=163, answer=81, steps=10_000)
