"""Countdown: equations that lead to a target.

    python -m train.main --config=configs/gym/countdown.py:masked_diffusion --workdir=runs/countdown
    python -m train.evaluate --workdir=runs/countdown --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("countdown", length=32, answer=19, steps=8000)
