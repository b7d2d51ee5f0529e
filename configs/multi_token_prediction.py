"""Multi-token prediction: independent heads, four tokens ahead (Gloeckle et al. 2024), or DeepSeek-V3's modules.

    python -m train.main --config=configs/multi_token_prediction.py
    python -m train.main --config=configs/multi_token_prediction.py:sequential
    python -m train.main --config=configs/multi_token_prediction.py:7b,sequential

Sizes: as in configs/clm.py. Only the objective and, with independent heads, the depth differ. Variants:
  independent    default: n = 4 tokens, each with a head of one layer on a shared trunk
  sequential     n = 2 tokens: one module after the model (DeepSeek-V3's D = 1). The weight of its loss is 0.3
  deepseek_v3    the same with DeepSeek-V3's weights, 0.3 for 10T of its 14.8T tokens, then 0.1, and a tenth of the text
                 with the middle last (section 4.1 of its paper: PSM at a rate of 0.1; short documents keep their order,
                 as in configs/fim.py). The module is trained on all rows of this mixture
  response       independent, of prompts and responses as in configs/sft.py. DeepSeek-V3's module instead:
                 --config.objective.heads=sequential --config.objective.num_future_tokens=2
                 --config.objective.loss_weight=0.3. With train.init_from the heads are new

model.num_layers is the depth of the model at inference: the trunk and the head of the next token. As in Gloeckle et
al., the total number of layers, heads included, is that of configs/clm.py. With independent heads a published size
therefore has n - 1 layers fewer: Llama 7b has 29 layers and three further heads. Tiny keeps all of its 4 layers,
because only one would remain.

Tiny on two CPU cores: 500 steps, held-out loss of the next token 1.988 (standard error 0.032); the corpus's
unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import base, clm, fim, sft
from configs.sizes import DIAL

VARIANTS = {
    "independent": dict(name="multi_token_prediction", num_future_tokens=4, heads="independent", loss_weight=1.0),
    "sequential": dict(name="multi_token_prediction", num_future_tokens=2, heads="sequential", loss_weight=0.3),
}
VARIANTS["response"] = VARIANTS["independent"] | dict(name="response_multi_token_prediction", inputs_eos=False)
VARIANTS["deepseek_v3"] = VARIANTS["sequential"] | dict(
    schedule="phases", phase_steps=(10 / 14.8,), phase_loss_weight=(0.1,)
)


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = (sft if variant == "response" else clm).get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    if variant == "deepseek_v3":
        middle_last = fim.get_config(size).objective.to_dict() | dict(fim_rate=1.0, spm_rate=0.0)
        rows = {"mtp": dict(mode="", weight=0.9, **config.objective), "fim": dict(mode="", weight=0.1, **middle_last)}
        config.objective = ConfigDict(base.mixture(rows))
    if config.objective.get("heads") == "independent" and size not in DIAL:
        config.model.num_layers -= config.objective.num_future_tokens - 1
    return config
