"""CLM whose states also predict the next states, through an MLP that inference does not use (NextLat).

    python -m train.main --config=configs/next_latent.py
    python -m train.main --config=configs/next_latent.py:kl --config.objective.horizon=3

The paper (Teoh et al. 2025, arXiv 2511.05963) weights the loss of the states by 1 to 3 and the divergence by 0.1 to 1.

Sizes: those of configs/clm.py. Variants:
  both     default: the smooth L1 loss of the states, and the divergence of the next token's probabilities
  latent   the states alone
  kl       the probabilities alone
"""

from ml_collections import ConfigDict

from configs import base, clm

VARIANTS = {
    name: dict(name="next_latent", horizon=1, latent_weight=latent, kl_weight=kl)
    for name, latent, kl in (("both", 1.0, 1.0), ("latent", 1.0, 0.0), ("kl", 0.0, 1.0))
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
