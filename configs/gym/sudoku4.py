"""Sudoku of 4 x 4 cells.

    python -m train.main --config=configs/gym/sudoku4.py:mlm_u --workdir=runs/sudoku4
    python -m train.evaluate --workdir=runs/sudoku4 --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("sudoku4", length=33, answer=16, steps=4000)
