"""Should a causal decoder be opened to later tokens at once, or step by step? Gong et al. (2024, DiffuLLaMA).

    python -m train.ablate --study=configs/studies/opened_attention.py --out=studies/opened_attention

A decoder of 0.35M parameters reads English as CLM (configs/studies/english.py, which names the files that it needs) for
three quarters of the tokens, and the rest as masked diffusion, which reads in both directions. The field
data.attention_annealing_steps opens the attention to later tokens edge by edge.

  at_once    all of it at the first step
  annealed   in 61 steps, half of those of diffusion
  scratch    masked diffusion for all tokens, without CLM

  bound      bits per byte of held-out text, the bound of masked diffusion
  subj_500   accuracy of a logistic regression on frozen states, of 500 labelled texts

DiffuLLaMA starts from models of 127M to 7B parameters. Its authors report large gradients without annealing.
"""

from configs.studies import common, english
from configs.studies.base import heldout_loss, raw_tokens, stage, study, variant

_DIFFUSION = {**english.SIZES["xs"], "model.architecture": "decoder_only"}
_CLM = stage("configs/clm.py", share=0.75, overrides=english.SIZES["xs"])


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/masked_diffusion.py:next",
        baseline="at_once",
        variants={
            "at_once": variant(_DIFFUSION, start=_CLM),
            "annealed": variant({**_DIFFUSION, "data.attention_annealing_steps": 61}, start=_CLM),
            "scratch": variant(_DIFFUSION),
        },
        budget=raw_tokens(1_000_000),
        measures={"bound": heldout_loss(metric="bits_per_byte"), **english.linear(("subj",), ("500",))},
        overrides=english.MODEL | {"optimizer.warmup_steps": 10},
        same_model="configs/clm.py",
    )
