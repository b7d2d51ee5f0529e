"""Does a head that looks beyond the next node find the path to the end of an arm of a star more often than SFT alone?

    python -m train.ablate --study=configs/studies/gym/star_graph_heads.py --out=studies/gym_star_graph_heads

The task, the model and the text are those of star_graph.py. All learn the path alone; TOP's head also learns the order
of the nodes that follow each position, and NextLat's MLP the next three states, with both of its losses.

G(2,3) with 10 names and fresh graphs, where the authors of TOP and NextLat have G(3,3) to G(5,5) and larger models. The
preset sft_multi_token_prediction, with 2.7 times the FLOPs of SFT, may be added as a variant. star_graph_next_latent.py
trains NextLat with 2.5 times the tokens.
"""

from configs.studies.base import published
from configs.studies.gym import star_graph
from configs.studies.gym.common import gym_study

NEXT_LATENT = published(
    "Teoh et al. (2025), arXiv 2511.05963, G(5,5): NextLat finds nearly all paths, the next token fails",
    measure="exact",
    metric="exact match",
    better_than=[("sft_next_latent", "sft")],
)


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "sft_top", "sft_next_latent"),
        tokens=star_graph.TOKENS,
        overrides=star_graph.GRAPHS,
        published=[
            published(
                "Zuhri et al. (2025), arXiv 2508.19228, G(3,3): TOP finds all paths, the next token 33.8%",
                measure="exact",
                metric="exact match",
                better_than=[("sft_top", "sft")],
            ),
            NEXT_LATENT,
        ],
    )
