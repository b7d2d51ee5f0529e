"""T5's span corruption (Raffel et al. 2020): 15% of the tokens, in spans of 3, on a T5 v1.1 encoder-decoder.

    python -m train.main --config=configs/span_corruption.py
    python -m train.main --config=configs/span_corruption.py --config.model.architecture=decoder_only
    python -m train.main --config=configs/span_corruption.py:base,span_10_15_u_u

Sizes: tiny (default), small, base, large, xl, xxl (T5 v1.1). Variants, by T5's names: span_3_15_u_u (default),
span_2_15_u_u, span_5_15_u_u and span_10_15_u_u, with spans of 3, 2, 5 and 10 tokens on average. The distribution of
span lengths is objective.span_length_distribution; T5's is "composition" (objectives/span_corruption.py).

Tiny on two CPU cores: 500 steps, held-out loss 2.463 (standard error 0.020); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

_T5 = {"noise_density": 0.15, "random_roll": False, "span_length_distribution": "composition"}
VARIANTS = {f"span_{mean}_15_u_u": {**_T5, "mean_noise_span_length": float(mean)} for mean in (3, 2, 5, 10)}
# By mean span length: the targets of 256 inputs (tiny) and of 512. See objectives/rows/window_specs.py.
TARGETS_LENGTH = {2.0: (62, 126), 3.0: (58, 114), 5.0: (54, 105), 10.0: (49, 99)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, architectures.T5_V1_1, VARIANTS)
    config.objective = ConfigDict({"name": "span_corruption", **VARIANTS[variant]})
    tiny_targets, paper_targets = TARGETS_LENGTH[config.objective.mean_noise_span_length]
    config.data.update(inputs_length=256, targets_length=tiny_targets)
    config.train.update(batch_size=8, steps=500)
    base.use_size(config, size, architectures.T5_V1_1)
    if size not in DIAL:
        recipes.use_t5_recipe(config)
        config.data.targets_length = paper_targets
        config.train.update(batch_size=2048, steps=1_000_000)
        machines.use_machine(config, size, machines.T5)
    return config
