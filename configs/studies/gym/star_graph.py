"""Which objectives find the path to the end of an arm of a star?

    python -m train.ablate --study=configs/studies/gym/star_graph.py --out=studies/gym_star_graph

data/sources/gym describes the task.

A model that takes any arm is right in half of the cases. SFT learns each node from the nodes before it, teacherless
training all nodes from the prompt. TOP, multi-token prediction and NextLat add losses of what comes after the next
node to those of SFT. An encoder fills in the masks of the path in the order of margins, so it may begin at the goal.
G(2,3) with 10 names and fresh graphs, where Bachmann & Nagarajan (2024) have G(2,5) with 50 names, 200,000 graphs and
models of 6 layers, and TOP's authors G(3,3) to G(5,5) with 30 names.
"""

from configs.studies.base import published
from configs.studies.gym.common import gym_study

AHEAD = ("sft_top", "sft_multi_token_prediction", "sft_next_latent")


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "teacherless", *AHEAD, "mlm_u", "response_diffusion"),
        tokens=1_600_000,
        overrides={"data.path": "star_graph:degree=2,length=3,labels=10", "data.inputs_length": 26},
        published=[
            published(
                "Bachmann & Nagarajan (2024), arXiv 2403.06963: next-token prediction stays at one in two, teacherless "
                "training is above it",
                measure="exact",
                metric="exact match",
                better_than=[("teacherless", "sft")],
            ),
            published(
                "Zuhri et al. (2025), arXiv 2508.19228, G(3,3): TOP and four tokens ahead 100, the next token 33.8",
                measure="exact",
                metric="exact match",
                better_than=[("sft_top", "sft"), ("sft_multi_token_prediction", "sft")],
            ),
            published(
                "Teoh et al. (2025), arXiv 2511.05963, G(5,5): NextLat near 100, next-token prediction fails",
                measure="exact",
                metric="exact match",
                better_than=[("sft_next_latent", "sft")],
            ),
        ],
    )
