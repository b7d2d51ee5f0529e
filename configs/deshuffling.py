"""T5's deshuffling (Raffel et al. 2020, section 3.3.1): inputs are a text's tokens in random order, targets the text.

    python -m train.main --config=configs/deshuffling.py

Presets: tiny (default), base (the paper's baseline: T5 v1.0 base). T5 calls this objective all_permute.

Tiny on two CPU cores: 600 steps, held-out loss 1.550 (standard error 0.038); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

SIZES = {"base": architectures.T5_V1_0["base"]}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    config.objective = ConfigDict({"name": "deshuffling"})
    config.data.documents = "split"
    base.use_size(config, preset, SIZES)
    if preset not in DIAL:
        recipes.use_t5_recipe(config)
        config.train.update(batch_size=128, steps=524_288)
        machines.use_machine(config, preset, {})
    return config
