"""States that also predict the next states, through an MLP that inference does not use (NextLat).

    python -m train.main --config=configs/next_latent.py
    python -m train.main --config=configs/next_latent.py:kl --config.objective.horizon=3

The paper (Teoh et al. 2025, arXiv 2511.05963) weights the loss of the states by 1 to 3 and the divergence by 0.1 to 1.

Sizes: those of configs/clm.py. Variants:
  both      default: the smooth L1 loss of the states, and the divergence of the next token's probabilities
  latent    the states alone
  kl        the probabilities alone
  response  both, of prompts and responses as in configs/sft.py: the responses alone are scored

Tiny on two CPU cores: 500 steps, held-out loss of the next token 2.277 (standard error 0.029), and 2.038 (0.033) with
kl and horizon=3, where configs/clm.py has 1.926: at this size and length both losses cost likelihood, and the one of
the states more. The paper reports gains on star graphs, with larger models and longer training.
"""

from ml_collections import ConfigDict

from configs import base, clm, sft

VARIANTS = {
    name: dict(name="next_latent", horizon=1, latent_weight=latent, kl_weight=kl)
    for name, latent, kl in (("both", 1.0, 1.0), ("latent", 1.0, 0.0), ("kl", 0.0, 1.0))
}
VARIANTS["response"] = VARIANTS["both"] | dict(name="response_next_latent", inputs_eos=False)


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = (sft if variant == "response" else clm).get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
