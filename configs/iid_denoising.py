"""T5's objectives without spans (Raffel et al. 2020, section 3.3): 15% of the tokens are noise, each for itself.

    python -m train.main --config=configs/iid_denoising.py
    python -m train.main --config=configs/iid_denoising.py:iid_15_d_d
    python -m train.main --config=configs/iid_denoising.py:base,iid_15_r10s90_f

Sizes: tiny (default), base (the paper's baseline: T5 v1.0 base). Variants, by T5's names for them:
  iid_15_u_u        default: each run of noise a sentinel of its own; targets tell the runs; the paper's baseline
  iid_10_u_u, iid_25_u_u, iid_50_u_u    the same at other rates
  iid_15_d_d        drop corrupted tokens: inputs without them, targets of them alone
  iid_15_m_f        MASS-style: each noise token a sentinel, always the same; targets are the whole text
  iid_15_r10s90_f   BERT-style: as above, a tenth of the noise tokens random ones instead

Tiny on two CPU cores: 500 steps, held-out loss 1.830; the corpus' unigram entropy is 3.236.
"""

import math

from ml_collections import ConfigDict

from configs import architectures, base

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
    """The experiment at one of its presets."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    config.objective = ConfigDict({"name": "iid_denoising", **VARIANTS[variant]})
    config.data.inputs_length = 256
    config.train.batch_size = 8
    config.train.steps = 500
    if base.is_paper_scale(config, size, SIZES):
        base.use_t5_recipe(config)
        config.train.batch_size = 128
        config.train.steps = 524_288
    # The most that targets can need. T5 has 192 and 104 at 512 inputs, to leave room for its random counts.
    density, inputs_length = config.objective.noise_density, config.data.inputs_length
    config.data.targets_length = {
        "noise_spans": 2 * math.ceil(density * inputs_length) + 1,
        "noise_tokens": math.ceil(density / (1 - density) * inputs_length) + 1,
        "full": inputs_length,
    }[config.objective.targets]
    if config.objective.inputs == "unique_sentinels":  # a run of noise may be one token long
        config.data.num_sentinels = max(config.data.num_sentinels, math.ceil(density * inputs_length))
    return config
