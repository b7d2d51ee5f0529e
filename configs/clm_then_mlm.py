"""CLM, then MLM, in one run of a decoder (Gisserot-Boukhlef et al. 2025, arXiv 2507.00994).

    python -m train.main --config=configs/clm_then_mlm.py
    python -m train.main --config=configs/clm_then_mlm.py:clm_25
    python -m train.main --config=configs/clm_then_mlm.py:clm_50_mlm

At a step of the run all rows change: before it they are read causally and each token is predicted, after it they are
read in both directions and the masked tokens are predicted. The optimizer and the schedule of the learning rate go on.

Sizes: those of configs/clm.py. Variants, by the percentage of steps with CLM:
  clm_100, clm_75, clm_50 (default), clm_25, clm_0   15% of the tokens are masked, and predicted in the places where CLM
                                                     predicts them (MNTP), which is not the paper's
  clm_75_mlm, clm_50_mlm, clm_25_mlm, clm_0_mlm      the paper's MLM: 40% of the tokens are masked, and predicted at
                                                     their own positions

Deviations of the latter from the authors' code (Nicolas-BZRD/EuroBERT): it selects each token with the rate as its
probability; here the number of masks is the expected one, rounded at random. Windows continue into the next document
(data.documents="join"), with CLM too.
"""

from ml_collections import ConfigDict

from configs import base, clm, hybrid, mlm
from configs.base import denoiser

_PERCENT = (50, 100, 75, 25, 0)
_MLM = mlm.VARIANTS["roberta"] | dict(name="mlm", mask_rate=0.4, mask_token_rate=1.0, random_token_rate=0.0)
VARIANTS = {f"clm_{percent}": percent for percent in _PERCENT}
VARIANTS |= {f"clm_{percent}_mlm": percent for percent in _PERCENT if percent < 100}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config, percent = clm.get_config(size), VARIANTS[variant]
    masked = _MLM if variant.endswith("_mlm") else hybrid.MNTP
    table = {
        "clm": denoiser(mode="", weight=float(percent > 0), final_weight=float(percent == 100), name="clm"),
        masked["name"]: denoiser(mode="", weight=float(percent == 0), final_weight=float(percent < 100), **masked),
    }
    if masked is _MLM:
        config.data.documents = "join"
    config.objective = ConfigDict(base.mixture(table) | dict(schedule="linear"))
    config.objective.begin_step = config.objective.end_step = percent / 100  # of the run
    return config
