"""Star graph: the path from the centre to the end of an arm (Bachmann & Nagarajan 2024).

    python -m train.main --config=configs/gym/star_graph.py:mlm_u --workdir=runs/star_graph
    python -m train.evaluate --workdir=runs/star_graph --probe=exact_match

The preset is the objective (configs/gym/common.py); by default CLM. Task and sizes: data/sources/gym/drawn.py.
"""

from configs.gym.common import gym

get_config = gym("star_graph", length=32, answer=5, steps=4000)
