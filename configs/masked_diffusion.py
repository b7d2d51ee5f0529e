"""Masked diffusion (Sahoo et al. 2024; LLaDA, Nie et al. 2025) on a bidirectional encoder, with an exact bound.

    python -m train.main --config=configs/masked_diffusion.py
    python -m train.main --config=configs/masked_diffusion.py:next --config.model.architecture=decoder_only

`bits_per_byte` of the evaluation is the bound on the bits of the text, which compares with that of configs/clm.py. The
bound is estimated from one draw of hidden tokens for each held-out window.

Sizes: tiny (default), base, large (BERT's shapes). Variants:
  same    default: a token is predicted at its own position
  next    it is predicted at the position that reads the token before it, as by a causal language model
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

VARIANTS = {name: dict(name="masked_diffusion", alignment=name) for name in ("same", "next")}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
