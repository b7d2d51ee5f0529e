"""Which objectives add, with and without carries?

    python -m train.ablate --study=configs/studies/gym/addition.py --out=studies/gym_addition

data/sources/gym describes the task.

A sum is written from its most significant digit; an encoder may fill in another digit first. The prompts are random
numbers, of which CLM and MLM learn nothing: SFT is the baseline.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "addition",
        ("sft", "clm", "mlm_u"),
        measures={
            "carry": exact_match("carry"),
            "no_carry": exact_match("no_carry"),
            "solved": success_rate(exact_match(), at=0.9),
        },
    )
