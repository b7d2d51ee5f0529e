"""Which objectives recall the values of several keys?

    python -m train.ablate --study=configs/studies/gym/mqar.py --out=studies/gym_mqar

data/sources/gym describes the task.

The prompts are random, and SFT, which predicts the answers alone, is the baseline, as in Arora et al. (2023), whose
models are scored and trained at the values. The model has half the width of the gym's others, relative positions,
larger initial values and AdamW: it learns the task in fewer updates. The task is known for telling architectures
apart; no figures of objectives are published.
"""

from configs.studies.gym.common import gym_study, narrow_model


def get_study():
    """Returns the study."""
    return gym_study(
        __doc__,
        "mqar",
        ("sft", "clm", "mlm_u"),
        tokens=1_000_000,
        overrides={
            "data.path": "mqar:pairs=4,queries=4,letters=8",
            "data.inputs_length": 25,
            **narrow_model(num_layers=2),
            "optimizer.learning_rate": 3e-3,
        },
    )
