"""Two mixtures that UL2's paper compares with UL2 (Tay et al. 2022): SC + LM, and UniLM's, on UL2's encoder-decoder.

    python -m train.main --config=configs/ul2_baselines.py
    python -m train.main --config=configs/ul2_baselines.py:unilm --config.model.architecture=decoder_only

Sizes: as in configs/ul2.py. Variants, by the paper's names, without mode tokens and in equal shares:
  sclm     default: span corruption as in T5, and causal language modeling
  unilm    UniLM's mixture (Dong et al. 2019) with generated targets: causal LM, prefix LM, and denoising of single
           tokens in place of UniLM's bidirectional MLM. UniLM gives a third of its batches to each, half of the
           causal third from right to left; here all of it is from left to right. configs/unilm.py is UniLM itself.
The paper's shares, and the density of its denoising, were not confirmed. To train one of the objectives alone, set
the weights of the others to 0: --config.objective.denoisers.sc.weight=0.0 leaves causal language modeling.
"""

from ml_collections import ConfigDict

from configs import base, iid_denoising, span_corruption, ul2
from configs.base import denoiser

_CLM = denoiser(mode="", weight=1.0, name="clm")
_PREFIX_LM = denoiser(mode="", weight=1.0, name="prefix_lm", target_fraction=0.5, split="uniform", sentinel=False)
_SC = denoiser(mode="", weight=1.0, name="span_corruption", **span_corruption.VARIANTS["span_3_15_u_u"])
_IID = denoiser(mode="", weight=1.0, name="iid_denoising", **iid_denoising.VARIANTS["iid_15_u_u"])
VARIANTS = {
    "sclm": {"sc": _SC, "clm": _CLM},
    "unilm": {"clm": _CLM, "prefix_lm": _PREFIX_LM, "iid": _IID},
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, ul2.SIZES, VARIANTS)
    config = ul2.get_config(size)
    config.objective = ConfigDict(base.mixture(VARIANTS[variant]))
    return config
