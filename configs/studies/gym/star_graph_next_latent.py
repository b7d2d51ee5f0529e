"""With more training, does NextLat find the path along an arm of a star more often than SFT, and by which loss?

    python -m train.ablate --study=configs/studies/gym/star_graph_next_latent.py --out=studies/star_graph_next_latent

star_graph_heads.py with 2.5 times the tokens. sft_next_latent has the losses of the next three states and of their
predictions, sft_next_latent_kl the latter alone.

G(2,3) with 10 names and fresh graphs, where the authors of NextLat have G(5,5), 20,000 updates and a larger model.
"""

from configs.studies.gym import star_graph
from configs.studies.gym.common import gym_study
from configs.studies.gym.star_graph_heads import NEXT_LATENT


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "sft_next_latent", "sft_next_latent_kl"),
        tokens=4_000_000,
        overrides=star_graph.GRAPHS,
        published=[NEXT_LATENT],
    )
