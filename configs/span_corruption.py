"""T5's span corruption (Raffel et al. 2020): 15% of the tokens, spans of 3, on a T5 v1.1 encoder-decoder.

    python -m train.main --config=configs/span_corruption.py
    python -m train.main --config=configs/span_corruption.py --config.model.architecture=decoder_only

Presets: tiny (default), small, base, large, xl, xxl (T5 v1.1).
"""

from ml_collections import ConfigDict

from configs import architectures, base


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    config.objective = ConfigDict(
        {"name": "span_corruption", "noise_density": 0.15, "mean_noise_span_length": 3.0, "random_roll": False}
    )
    config.data.inputs_length = 256
    config.data.targets_length = 58  # what 256 inputs need: see objectives/lengths.py
    if base.is_paper_scale(config, preset, architectures.T5_V1_1):
        base.use_t5_recipe(config)
        config.data.targets_length = 114
        config.train.batch_size = 2048
        config.train.steps = 1_000_000
    return config
