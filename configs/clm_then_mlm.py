"""CLM, then MLM, in one run of a decoder (Gisserot-Boukhlef et al. 2025, arXiv 2507.00994).

    python -m train.main --config=configs/clm_then_mlm.py
    python -m train.main --config=configs/clm_then_mlm.py:clm_25

At a step of the run all rows change: before it they are read causally and each token is predicted, after it they are
read in both directions and the masked tokens are predicted, in the same places (MNTP). The optimizer and the schedule
of the learning rate go on.

Sizes: those of configs/clm.py. Variants, by the percentage of steps with CLM: clm_100, clm_75, clm_50 (default),
clm_25, clm_0.
"""

from ml_collections import ConfigDict

from configs import base, clm, hybrid
from configs.base import denoiser

_PERCENT = (50, 100, 75, 25, 0)
VARIANTS = {f"clm_{percent}": percent for percent in _PERCENT}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config, percent = clm.get_config(size), VARIANTS[variant]
    table = {
        "clm": denoiser(mode="", weight=float(percent > 0), final_weight=float(percent == 100), name="clm"),
        "mntp": denoiser(mode="", weight=float(percent == 0), final_weight=float(percent < 100), **hybrid.MNTP),
    }
    config.objective = ConfigDict(base.mixture(table) | dict(schedule="linear"))
    config.objective.begin_step = config.objective.end_step = percent / 100  # of the run
    return config
