"""Reversal: are facts that were read in one order known in the other? (Berglund et al. 2023).

    python -m train.main --config=configs/gym/reversal.py:mlm_u --workdir=runs/reversal
    python -m train.evaluate --workdir=runs/reversal --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/facts.py.
"""

from configs.gym.common import gym

get_config = gym("reversal", length=8, answer=3, steps=5000, batch_size=16)
