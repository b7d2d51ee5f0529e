"""Does fill-in-the-middle cost left-to-right quality? Bavarian et al. (2022).

    python -m train.ablate --study=configs/studies/fim_for_free.py --out=studies/fim_for_free

  clm                       no document is reordered
  fim_50, fim_90, fim_100   this percentage of documents is; half of them in the SPM format. fim_50 is the baseline
  fim_50_psm                50%, all in the PSM format

  left_to_right         held-out loss under configs/clm.py, of documents in their own order
  continuation          bits per byte of the second half of a text
  infilling_3, _8, _32  of the variants with FIM: bits per byte of one hidden span, in the PSM format
  accuracy, macro_f1    after the same fine-tuning

Why this is fair: all variants have the same decoder, learning rate, rows and raw tokens, nearly equal FLOPs, and are
scored on the same tokens. A run's own loss is of reordered documents. Whether FIM is free is the difference of clm and
fim_50 in left_to_right and continuation. The paper's models are trained long enough that fewer documents in their own
order do not matter; here there are few documents.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, published, raw_tokens, study, variant


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/fim.py",
        baseline="fim_50",
        variants={
            "fim_50": variant(),
            "clm": variant(config="configs/clm.py"),
            "fim_90": variant({"objective.fim_rate": 0.9}),
            "fim_100": variant({"objective.fim_rate": 1.0}),
            "fim_50_psm": variant({"objective.spm_rate": 0.0}),
        },
        budget=raw_tokens(1_000_000),
        measures={
            "left_to_right": heldout_loss(config="configs/clm.py"),
            **common.continuation(),
            **common.infilling(only=("fim_50", "fim_90", "fim_100", "fim_50_psm")),
            **common.classification(),
        },
        overrides=common.SHORT_RUNS,
        published=[
            published(
                "Bavarian et al. (2022): rates up to 0.9 cost no left-to-right loss, a rate of 1 does",
                measure="left_to_right",
                metric="left-to-right loss",
                better_than=[("clm", "fim_100"), ("fim_50", "fim_100"), ("fim_90", "fim_100")],
                better="lower",
            )
        ],
    )
