"""MQAR: the values of several keys of a list (Arora et al. 2023).

    python -m train.main --config=configs/gym/mqar.py:mlm_u --workdir=runs/mqar
    python -m train.evaluate --workdir=runs/mqar --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("mqar", length=30, answer=8, steps=2000)
