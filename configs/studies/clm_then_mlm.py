"""Which part of the training of an encoder should be CLM? Gisserot-Boukhlef et al. (2025, arXiv 2507.00994).

    python -m train.ablate --study=configs/studies/clm_then_mlm.py --out=studies/clm_then_mlm
    python -m train.ablate --study=configs/studies/clm_then_mlm.py --out=studies/clm_then_mlm_flops \
        --seeds=3 --budget_unit=flops --budget=1.14e12

One decoder of 0.35M parameters reads English (configs/studies/english.py, which names the files that it needs): CLM for
a part of the steps, and masked tokens in rows that are read in both directions (MNTP) for the others.

  masked             held-out loss of the masked tokens, of every variant
  subj_500, mr_500   accuracy of a logistic regression on frozen states, of 500 labelled texts; those of clm_100 are
                     causal, the others of both directions

At equal tokens every variant with CLM has 2.5 times the FLOPs of clm_0, because its batches compute the logits of all
tokens, those of MNTP too. The paper fine-tunes models of 210M to 1B parameters, and finds CLM and then MLM ahead of MLM
at a fixed number of steps.
"""

from configs.studies import common, english
from configs.studies.base import heldout_loss, raw_tokens, study, variant

_CONFIG = "configs/clm_then_mlm.py"


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config=_CONFIG,
        baseline="clm_0",
        variants={
            f"clm_{percent}": variant(english.SIZES["xs"], config=f"{_CONFIG}:clm_{percent}")
            for percent in (0, 25, 50, 75, 100)
        },
        budget=raw_tokens(1_000_000),
        measures={"masked": heldout_loss(config=f"{_CONFIG}:clm_0"), **english.linear(("subj", "mr"), ("500",))},
        overrides=english.MODEL,
        same_model="configs/clm.py",
    )
