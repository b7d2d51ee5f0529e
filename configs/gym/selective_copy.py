"""Selective copy: the symbols among blanks, in their order (Gu & Dao 2023).

    python -m train.main --config=configs/gym/selective_copy.py:mlm_u --workdir=runs/selective_copy
    python -m train.evaluate --workdir=runs/selective_copy --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("selective_copy", length=41, answer=8, steps=2000)
