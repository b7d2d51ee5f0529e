"""Which objectives end a word of a context-free language?

    python -m train.ablate --study=configs/studies/gym/cfg.py --out=studies/gym_cfg

data/sources/gym describes the task.

The length of a word leaves one end that makes it grammatical. Answers differ in length, and span corruption of one
length is no variant: it writes answers of that length alone.
"""

from configs.studies.gym.common import gym_study


def get_study():
    """Returns the study."""
    return gym_study(__doc__, "cfg", ("clm", "mlm_u"), tokens=750_000)
