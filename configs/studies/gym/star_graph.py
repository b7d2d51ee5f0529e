"""Which objectives find the path to the end of an arm of a star?

    python -m train.ablate --study=configs/studies/gym/star_graph.py --out=studies/gym_star_graph

data/sources/gym describes the task.

A model that takes any arm is right in half of the cases. An encoder fills in the masks of the path in the order of
margins, so it may begin at the goal; a decoder begins at the start. G(2,5) with 20 names and fresh graphs, where
Bachmann & Nagarajan (2024) have 50 names and models of 6 layers.
"""

from configs.studies.base import published
from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "clm", "multi_token_prediction", "mlm_u"),
        published=[
            published(
                "Token order prediction, arXiv 2508.19228: G(3,3), 300,000 graphs; next token 33.8, four tokens 100",
                measure="exact",
                metric="exact match",
                better_than=[("multi_token_prediction", "sft")],
            )
        ],
    )
