"""Is ELECTRA better than MLM at equal compute? Clark et al. (2020).

    python -m train.ablate --study=configs/studies/electra_mlm.py --out=studies/electra_mlm

  mlm                  BERT's MLM
  electra              a discriminator of the same size, and a generator of a quarter of the width
  electra_half         a generator of half the width
  electra_weight_10    the discriminator's loss with a weight of 10 in place of 50

  accuracy, macro_f1    after the same fine-tuning of MLM's encoder and of ELECTRA's discriminator

Why this is fair: the encoders that are fine-tuned have equal sizes, all variants have one learning rate, and the budget
is FLOPs of forward and backward passes, the generator's included: ELECTRA therefore trains on less text. No measure of
masked tokens is shared, because ELECTRA's generator, which predicts them, is smaller and is not what ELECTRA is for. A
discriminator this small finds few of the replaced tokens (configs/electra.py), so the published order need not appear.
"""

from configs.studies import common
from configs.studies.base import flops, published, study, variant


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/electra.py",
        baseline="mlm",
        variants={
            "mlm": variant(config="configs/mlm.py"),
            "electra": variant(),
            "electra_half": variant({"objective.generator_size": 0.5}),
            "electra_weight_10": variant({"objective.discriminator_weight": 10.0}),
        },
        # 1.2 million raw tokens of MLM.
        budget=flops(5e12),
        measures=common.classification(),
        overrides=common.SHORT_RUNS,
        published=[
            published(
                "google-research/electra, README: Small-OWT, 14M parameters, equal compute",
                measure="accuracy",
                metric="MNLI and SST",
                better_than=[("electra", "mlm")],
            )
        ],
    )
