"""Is the last quarter of a causal model's training better spent on UL2R? Tay et al. (2022, arXiv 2210.11399).

    python -m train.ablate --study=configs/studies/ul2r.py --out=studies/ul2r

  clm              causal language modeling for all tokens
  clm_then_clm     the first 75% of the tokens and the last 25% as two runs, each with its own warm-up and decay: the
                   control for the second learning-rate schedule of clm_then_ul2r
  clm_then_ul2r    the same, with UL2R in the second run (configs/ul2r.py): the baseline
  ul2r             UL2R for all tokens

  left_to_right         held-out loss under configs/clm.py: what UL2R may cost
  continuation          bits per byte of the second half of a text, in the layout of each run
  accuracy, macro_f1    after the same fine-tuning
  infilling_3, _8       of the runs with UL2R: what it adds

Why this is fair: all variants have the same decoder, learning rate and raw tokens in total, and are scored on the same
held-out bytes. U-PaLM spends 0.1% of the compute on UL2R, not a quarter of the tokens: at this size 0.1% would be a
single step. Fine-tuning has the attention of training: clm and clm_then_clm read the text from the left, the others in
both directions.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, published, raw_tokens, stage, study, variant

_FIRST = stage("configs/clm.py", share=0.75)


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/clm.py",
        baseline="clm_then_ul2r",
        variants={
            "clm_then_ul2r": variant(config="configs/ul2r.py", start=_FIRST),
            "clm_then_clm": variant(start=_FIRST),
            "clm": variant(),
            "ul2r": variant(config="configs/ul2r.py"),
        },
        budget=raw_tokens(1_200_000),
        measures={
            "left_to_right": heldout_loss(config="configs/clm.py", overrides={"data.documents": "join"}),
            **common.continuation(),
            **common.classification(),
            **common.infilling(only=("clm_then_ul2r", "ul2r"), spans=(3, 8)),
        },
        overrides=common.SHORT_RUNS | {"optimizer.warmup_steps": 30, "data.documents": "join"},
        published=[
            published(
                "Tay et al. (2022), arXiv 2210.11399, abstract: PaLM 540B; GPT-JT's authors found a gain of about 1%",
                measure="accuracy",
                metric="average of few-shot tasks",
                better_than=[("clm_then_ul2r", "clm")],
            )
        ],
    )
