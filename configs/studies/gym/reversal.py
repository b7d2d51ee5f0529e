"""Is a fact that was read in one order known in the other?

    python -m train.ablate --study=configs/studies/gym/reversal.py --out=studies/gym_reversal

data/sources/gym describes the task.

For each fact with one order, the training text lacks one of four wordings. The test has the fact in this wording, in
the order of the training text (forward) and in the other (backward). Without random_roll the end of every instance is
hidden, as with UL2's x3, and never its start.
"""

from configs.studies.gym.common import BOTH_ORDERS, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "reversal",
        ("clm", "span_corruption", "span_corruption_roll", "mlm_50", "mlm_u"),
        tokens=500_000,
        measures=BOTH_ORDERS,
    )
