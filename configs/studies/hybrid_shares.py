"""How many rows of a hybrid should be causal? Charpentier and Samuel (2024, GPT-BERT).

    python -m train.ablate --study=configs/studies/hybrid_shares.py --out=studies/hybrid_shares
    python -m train.ablate --study=configs/studies/hybrid_shares.py --out=studies/hybrid_shares_flops \
        --seeds=3 --budget_unit=flops --budget=2.2843e12

One decoder of 0.35M parameters reads English (configs/studies/english.py, which names the files that it needs): rows of
CLM, and rows in both directions with 15% of the tokens masked (MNTP), at five shares of causal rows. As in GPT-BERT,
the shares of the rows are those of the loss.

  next_token      held-out loss of CLM, of every variant
  masked          held-out loss of the masked tokens, of every variant
  subj_500        accuracy of a logistic regression on frozen states, of 500 labelled texts; with CLM's rows alone the
                  states are causal, otherwise they are those of both directions

At equal tokens all variants with causal rows have the same FLOPs, 2.5 times those of mntp: a batch that may have a
causal row computes the logits of all tokens. The published orders are of 31M parameters and 10M words, read ten
times, by BLiMP.
"""

from configs.studies import common, english
from configs.studies.base import heldout_loss, raw_tokens, study, variant

_HYBRID = "configs/hybrid.py"
_SHARES = {"even": "", "clm": "clm", "causal_focus": "causal_focus", "masked_focus": "masked_focus", "mntp": "mntp"}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config=_HYBRID,
        baseline="even",
        variants={
            name: variant(english.SIZES["xs"], config=f"{_HYBRID}:{preset}" if preset else _HYBRID)
            for name, preset in _SHARES.items()
        },
        budget=raw_tokens(1_000_000),
        measures={
            "next_token": heldout_loss(config=f"{_HYBRID}:clm"),
            "masked": heldout_loss(config=f"{_HYBRID}:mntp"),
            **english.linear(("subj",), ("500",)),
        },
        overrides=english.MODEL,
        same_model="configs/clm.py",
    )
