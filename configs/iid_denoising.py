"""T5's objectives without spans (Raffel et al. 2020, section 3.3): 15% of the tokens, drawn one by one, are noise.

    python -m train.main --config=configs/iid_denoising.py
    python -m train.main --config=configs/iid_denoising.py:iid_15_d_d
    python -m train.main --config=configs/iid_denoising.py:base,iid_15_r10s90_f

Sizes: tiny (default), base (the paper's baseline: T5 v1.0 base). Variants, by T5's names:
  iid_15_u_u        default, the paper's baseline: each run of noise tokens is replaced by a different sentinel;
                    the targets are the sentinels, each followed by its run
  iid_10_u_u, iid_25_u_u, iid_50_u_u    the same with 10%, 25% and 50% noise
  iid_15_d_d        noise tokens are dropped from the inputs; the targets are the noise tokens. As in T5, windows are as
                    long as those of the other variants, so about 15% of the inputs are padding
  iid_15_m_f        MASS-style: each noise token is replaced by the same sentinel; the targets are the whole text
  iid_15_r10s90_f   BERT-style: as iid_15_m_f, with a random token in place of a tenth of the sentinels

Tiny on two CPU cores: 500 steps, held-out loss 1.858 (standard error 0.014); the corpus's unigram entropy is 3.236.
"""

import math

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

SIZES = {"base": architectures.T5_V1_0["base"]}


def _u_u(noise_density: float) -> dict:
    return dict(noise_density=noise_density, inputs="unique_sentinels", random_token_rate=0.0, targets="noise_spans")


VARIANTS = {
    "iid_15_u_u": _u_u(0.15),
    "iid_10_u_u": _u_u(0.1),
    "iid_25_u_u": _u_u(0.25),
    "iid_50_u_u": _u_u(0.5),
    "iid_15_d_d": dict(noise_density=0.15, inputs="drop", random_token_rate=0.0, targets="noise_tokens"),
    "iid_15_m_f": dict(noise_density=0.15, inputs="sentinels", random_token_rate=0.0, targets="full"),
    "iid_15_r10s90_f": dict(noise_density=0.15, inputs="sentinels", random_token_rate=0.1, targets="full"),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    config.objective = ConfigDict({"name": "iid_denoising", **VARIANTS[variant]})
    config.data.inputs_length = 256
    config.train.update(batch_size=8, steps=500)
    base.use_size(config, size, SIZES)
    if size not in DIAL:
        recipes.use_t5_recipe(config)
        config.train.update(batch_size=128, steps=524_288)
        machines.use_machine(config, size, {})
    # The longest possible targets of windows of inputs_length - 1 tokens, which T5 has for every variant: 155, 78 and
    # 512 at 512 inputs. T5 uses 192, 104 and 512, because its number of noise tokens is random.
    density, inputs_length = config.objective.noise_density, config.data.inputs_length
    config.data.targets_length = {
        "noise_spans": 2 * math.ceil(density * (inputs_length - 1)) + 1,
        "noise_tokens": math.ceil(density * (inputs_length - 1)) + 1,
        "full": inputs_length,
    }[config.objective.targets]
    if config.objective.inputs == "unique_sentinels":  # each run of noise could be a single token
        config.data.num_sentinels = max(config.data.num_sentinels, math.ceil(density * (inputs_length - 1)))
    return config
