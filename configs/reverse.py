"""Reverse training of a causal language model (Golovneva et al. 2024): half of the documents are read from the end.

    python -m train.main --config=configs/reverse.py
    python -m train.main --config=configs/reverse.py:segment --config.objective.max_segment_length=10

Sizes: those of configs/clm.py. Variants (objectives/reverse.py):
  word      default: words keep the order of their tokens
  token     the tokens in reverse
  segment   segments of 1 to 25 tokens keep their order
"""

from ml_collections import ConfigDict

from configs import base, clm

VARIANTS = {
    unit: dict(name="reverse", reverse_share=0.5, unit=unit, max_segment_length=25)
    for unit in ("word", "token", "segment")
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
