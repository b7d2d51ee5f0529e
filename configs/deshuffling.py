"""T5's deshuffling (Raffel et al. 2020, section 3.3.1): read the tokens of a text in random order, write the text.

    python -m train.main --config=configs/deshuffling.py

Presets: tiny (default), base (the paper's baseline: T5 v1.0 base). T5 calls it all_permute.

Tiny on two CPU cores: 600 steps, held-out loss 1.217; the corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    config.objective = ConfigDict({"name": "deshuffling"})
    config.data.documents = "split"
    if base.is_paper_scale(config, preset, {"base": architectures.T5_V1_0["base"]}):
        base.use_t5_recipe(config)
        config.train.batch_size = 128
        config.train.steps = 524_288
    return config
