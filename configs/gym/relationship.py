"""Relationship: both neighbours of the middle of a chain (Kitouni et al. 2024).

    python -m train.main --config=configs/gym/relationship.py:mlm_u --workdir=runs/relationship
    python -m train.evaluate --workdir=runs/relationship --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/facts.py.
"""

from configs.gym.common import gym

get_config = gym("relationship", length=11, answer=4, steps=5000, batch_size=16)
