"""Which objectives end a word of a context-free language?

    python -m train.ablate --study=configs/studies/gym/cfg.py --out=studies/gym_cfg

data/sources/gym/drawn.py describes the task.
"""

from configs.studies.base import success_rate
from configs.studies.gym.common import exact_match, gym_study


def get_study():
    """Returns the study."""
    return gym_study(
        "cfg",
        ("clm", "sft", "mlm", "mlm_u"),
        question="Which objectives end a word of a context-free language?",
        tokens=2_000_000,
        measures={"exact": exact_match(), "solved": success_rate(exact_match(), at=0.9)},
        notes="The length of a word leaves one end that makes it grammatical. Answers differ in length, and span "
        "corruption of one length is no variant: it writes answers of that length alone.",
    )
