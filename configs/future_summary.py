"""A head that predicts a summary of the tokens ahead: their order (TOP), or which they are (FSP).

    python -m train.main --config=configs/future_summary.py
    python -m train.main --config=configs/future_summary.py:bag
    python -m train.main --config=configs/gym/star_graph.py:sft_top     # on responses alone, as in TOP's star graphs

The head is one more output table, which exports and inference do not have.

Sizes: those of configs/clm.py. Variants:
  order     default: token order prediction (Zuhri et al. 2025)
  bag       the tokens 2 to 12 ahead (Mahajan et al. 2025)
  response  order, of prompts and responses as in configs/sft.py: the responses alone are scored and summarized
"""

from ml_collections import ConfigDict

from configs import base, clm, sft

VARIANTS = {name: dict(name="future_summary", summary=name, horizon=12, loss_weight=1.0) for name in ("order", "bag")}
VARIANTS["response"] = VARIANTS["order"] | dict(name="response_future_summary", inputs_eos=False)


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = (sft if variant == "response" else clm).get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
