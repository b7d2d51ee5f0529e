"""CLM with masked inputs (MEAP, Zhuang et al. 2025): 15% of the tokens that the model reads are [MASK] in training.

    python -m train.main --config=configs/masked_inputs.py
    python -m train.main --config=configs/masked_inputs.py:uniform

Evaluations hide nothing, so the held-out loss is that of configs/clm.py on the same text.

Sizes: those of configs/clm.py. Variants:
  probabilistic   default: 15% of the tokens, in each example
  uniform         a share of the tokens that is drawn for each example, from 0 to 1, as in masked diffusion
"""

from ml_collections import ConfigDict

from configs import base, clm

_MEAP = dict(name="masked_inputs", mask_rate=0.15, mask_count="probabilistic")
VARIANTS = {"probabilistic": _MEAP, "uniform": _MEAP | dict(mask_rate=0.5, mask_count="uniform")}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
