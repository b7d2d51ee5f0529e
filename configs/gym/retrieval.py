"""Retrieval: values by key, and keys by value (Kitouni et al. 2024).

    python -m train.main --config=configs/gym/retrieval.py:mlm_u --workdir=runs/retrieval
    python -m train.evaluate --workdir=runs/retrieval --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/facts.py.
"""

from configs.gym.common import gym

get_config = gym("retrieval", length=8, answer=3, steps=5000, batch_size=16)
