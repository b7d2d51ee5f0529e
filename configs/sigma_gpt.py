"""sigma-GPT (Pannatier et al. 2024): a causal language model of texts in any order; and XLNet's objective through it.

    python -m train.main --config=configs/sigma_gpt.py
    python -m train.main --config=configs/sigma_gpt.py:xlnet
    python -m train.evaluate --workdir=runs/sigma_gpt --config=configs/clm.py  # bits per byte from left to right

`any_order_bits_per_byte` of the evaluation is of texts in a random order each. It is a bound on the bits of the text,
and compares with `bits_per_byte` of a run of configs/masked_diffusion.py whose windows are equal (docs/comparing.md).
train.generate continues a prompt from left to right, and fills in the [MASK]s of a prompt in any --order.

Sizes: those of configs/clm.py. Variants (objectives/any_order.py):
  curriculum  default: from left to right at first; the share of shuffled texts grows to 1 in the first fifth of the
              run; in the authors' code it grows over the whole run (objective.end_step=1.0)
  shuffled    every text is shuffled from the first step
  xlnet       the last sixth of each shuffled text is predicted (Yang et al. 2019), and its other tokens are read
"""

from ml_collections import ConfigDict

from configs import base, clm

_SHUFFLED = dict(name="any_order", shuffled_share=1.0, predicted_share=1.0)
VARIANTS = {
    "curriculum": _SHUFFLED
    | dict(shuffled_share=0.0, final_shuffled_share=1.0, schedule="linear", begin_step=0.0, end_step=0.2),
    "shuffled": _SHUFFLED,
    "xlnet": _SHUFFLED | dict(predicted_share=1 / 6),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.model.target_positions = True
    config.data.bidirectional_inputs = False
    return config
