"""A context-free language: the end of a word of balanced brackets.

    python -m train.main --config=configs/gym/cfg.py:mlm_u --workdir=runs/cfg
    python -m train.evaluate --workdir=runs/cfg --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("cfg", length=32, answer=4, steps=2000)
