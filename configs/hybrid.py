"""Causal and masked rows in one decoder (GPT-BERT, Charpentier and Samuel 2024): CLM and masked next-token prediction.

    python -m train.main --config=configs/hybrid.py
    python -m train.main --config=configs/hybrid.py:masked_focus

Each row is read causally or in both directions. Its tokens are predicted in the same place in both: where the token
before is read. The model continues text as a causal language model, and fills in masks as a bidirectional encoder.

Sizes: those of configs/clm.py. Variants, by the share of causal rows: causal_focus 15/16, even 1/2 (default),
masked_focus 1/16, and the two ends clm and mntp.

A masked row has 15% of the scored tokens of a causal row, each with 1/0.15 of the weight (loss_weight), so the shares
of the rows are those of the loss, as in the authors' code, which averages the rows of each kind. With another mask_rate
set --config.objective.denoisers.mntp.loss_weight to 1/mask_rate. Deviations from that code: objectives/mntp.py; all
hidden tokens are masks, where it shows a tenth as random tokens and keeps another tenth; a mask rate that falls from
30% to 15% is a schedule of the denoiser (docs/objectives.md), and with a constant loss_weight the masked rows' share of
the loss falls with it.
"""

from ml_collections import ConfigDict

from configs import base, clm
from configs.base import denoiser

_CAUSAL_SHARES = {"even": 1 / 2, "causal_focus": 15 / 16, "masked_focus": 1 / 16, "clm": 1.0, "mntp": 0.0}
MNTP = dict(name="mntp", mask_rate=0.15, mask_token_rate=1.0, random_token_rate=0.0)
VARIANTS = {
    name: base.mixture(
        {
            "clm": denoiser(mode="", weight=share, name="clm"),
            # The two ends are the objectives alone, whose tokens have the weight 1.
            "mntp": denoiser(mode="", weight=1 - share, loss_weight=1 / 0.15 if 0 < share < 1 else 1.0, **MNTP),
        }
    )
    for name, share in _CAUSAL_SHARES.items()
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
