"""With more training, does NextLat find the path along an arm of a star more often than SFT, and by which loss?

    python -m train.ablate --study=configs/studies/gym/star_graph_next_latent.py --out=studies/star_graph_next_latent

star_graph_heads.py with 2.5 times the tokens. sft_next_latent has the losses of the next three states and of their
predictions, sft_next_latent_kl the latter alone.

G(2,3) with 10 names and fresh graphs, where the authors of NextLat have G(5,5), 20,000 updates and a larger model.
"""

from configs.studies.base import published
from configs.studies.gym import star_graph
from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "sft_next_latent", "sft_next_latent_kl"),
        tokens=4_000_000,
        overrides=star_graph.GRAPHS,
        published=[
            published(
                "Teoh et al. (2025), arXiv 2511.05963, G(5,5): NextLat finds nearly all paths, the next token fails",
                measure="exact",
                metric="exact match",
                better_than=[("sft_next_latent", "sft")],
            )
        ],
    )
