"""Which objectives find the path to the end of an arm of a star?

    python -m train.ablate --study=configs/studies/gym/star_graph.py --out=studies/gym_star_graph

data/sources/gym describes the task.

A model that takes any arm is right in half of the cases. SFT learns each node from the nodes before it, teacherless
training all nodes from the prompt. An encoder fills in the masks of the path in the order of margins, so it may begin
at the goal. G(2,3) with 10 names and fresh graphs, where Bachmann & Nagarajan (2024) have G(2,5) with 50 names, 200,000
graphs and models of 6 layers.
"""

from configs.studies.base import published
from configs.studies.gym.common import gym_study

TOKENS = 1_600_000
GRAPHS = {"data.path": "star_graph:degree=2,length=3,labels=10", "data.inputs_length": 26}


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "star_graph",
        ("sft", "teacherless", "mlm_u"),
        tokens=TOKENS,
        overrides=GRAPHS,
        published=[
            published(
                "Bachmann & Nagarajan (2024), arXiv 2403.06963: next-token prediction stays at one in two, teacherless "
                "training is above it",
                measure="exact",
                metric="exact match",
                better_than=[("teacherless", "sft")],
            )
        ],
    )
