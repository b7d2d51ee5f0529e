"""Causal and masked rows in one decoder (GPT-BERT, Charpentier and Samuel 2024): CLM and masked next-token prediction.

    python -m train.main --config=configs/hybrid.py
    python -m train.main --config=configs/hybrid.py:masked_focus

Each row is read causally or in both directions. Its tokens are predicted in the same place in both: where the token
before is read. The model continues text as a causal language model, and fills in masks as a bidirectional encoder.

Sizes: those of configs/clm.py. Variants, by the share of causal rows: causal_focus 15/16, even 1/2 (default),
masked_focus 1/16, and the two ends clm and mntp.

A masked row has 15% of the scored tokens of a causal row, each with 1/0.15 of the weight (loss_weight), so the shares
of the rows are those of the loss, as in the authors' code, which averages the rows of each kind. With another mask_rate
set --config.objective.denoisers.mntp.loss_weight to 1/mask_rate. Deviations from that code: objectives/mntp.py; the
optimizer is not its LAMB (--config.optimizer.name=lamb); the rate is constant, and all hidden tokens are masks.
causal_focus_decay, even_decay and masked_focus_decay are the same shares with the masks of that code: the rate falls
from 30% to 15% in the course of the run, a tenth of the hidden tokens are random and another tenth kept, and each text
has the weight of its length (weighting="text"), so that the masked rows' share of the loss does not fall with the rate.
"""

from ml_collections import ConfigDict

from configs import base, clm
from configs.base import denoiser

_CAUSAL_SHARES = {"even": 1 / 2, "causal_focus": 15 / 16, "masked_focus": 1 / 16, "clm": 1.0, "mntp": 0.0}
MNTP = dict(name="mntp", mask_rate=0.15, mask_token_rate=1.0, random_token_rate=0.0, weighting="token")
_DECAY = dict(name="mntp", mask_rate=0.3, mask_token_rate=0.8, random_token_rate=0.1, weighting="text")
_DECAY |= dict(schedule="linear", begin_step=0.0, end_step=1.0, final_mask_rate=0.15)


def _rows(share: float, mntp: dict, loss_weight: float) -> dict:
    """Returns the fields of config.objective for a share of causal rows; the others are rows of `mntp`."""
    clm_row = denoiser(mode="", weight=share, name="clm")
    return base.mixture({"clm": clm_row, "mntp": denoiser(mode="", weight=1 - share, loss_weight=loss_weight, **mntp)})


# The two ends are the objectives alone, whose tokens have the weight 1.
VARIANTS = {name: _rows(share, MNTP, 1 / 0.15 if 0 < share < 1 else 1.0) for name, share in _CAUSAL_SHARES.items()} | {
    f"{name}_decay": _rows(_CAUSAL_SHARES[name], _DECAY, 1.0) for name in ("even", "causal_focus", "masked_focus")
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
