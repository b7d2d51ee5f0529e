"""Which objectives recall the values of several keys?

    python -m train.ablate --study=configs/studies/gym/mqar.py --out=studies/gym_mqar

data/sources/gym/drawn.py describes the task.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        "mqar",
        ("clm", "span_corruption", "mlm", "mlm_u"),
        question="Which objectives recall the values of several keys?",
        tokens=2_000_000,
        measures={"exact": exact_match(), "solved": success_rate(exact_match(), at=0.9)},
        notes="The task is known for telling architectures apart (Arora et al. 2023); no figures of objectives are "
        "published.",
    )
