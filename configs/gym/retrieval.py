"""Retrieval: values by key, and keys by value (Kitouni et al. 2024).

    python -m train.main --config=configs/gym/retrieval.py:mlm_u --workdir=runs/retrieval
    python -m train.evaluate --workdir=runs/retrieval --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/facts.py.
"""

from ml_collections import ConfigDict

from configs.gym.common import gym


def get_config(preset: str = "clm") -> ConfigDict:
    """Returns the experiment of an objective."""
    return gym(preset, "retrieval", length=8, answer=3, steps=5000, batch_size=16)
