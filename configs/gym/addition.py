"""Addition with carries.

    python -m train.main --config=configs/gym/addition.py:mlm_u --workdir=runs/addition
    python -m train.evaluate --workdir=runs/addition --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("addition", length=12, answer=4, steps=4000)
