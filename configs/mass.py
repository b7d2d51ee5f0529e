"""MASS (Song et al. 2019): half of a text is masked as one fragment, which the decoder writes at its positions.

    python -m train.main --config=configs/mass.py
    python -m train.main --config=configs/mass.py --config.objective.mask_rate=0.3 --config.data.targets_length=78

Sizes: tiny (default: small BART blocks), base (the paper's 6 + 6 layers of 1024, optimizer and rates; the paper trains
on 3000 tokens a GPU and names neither the number of GPUs of each run nor of its updates, so the batch and the steps are
choices of this codebase; so are rows of 256 tokens, where the authors' code for translation reads sentences of at most
100, and that for summarization rows of 512). T5's MASS-style denoiser, with single tokens and full targets, is
configs/iid_denoising.py:iid_15_m_f.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    config.objective = ConfigDict(dict(name="mass", mask_rate=0.5, mask_token_rate=0.8, random_token_rate=0.1))
    config.loss.z_loss = 0.0
    config.data.update(inputs_length=256, targets_length=129)
    config.model.update(architectures.BART["base"] | base.TINY_SIZES | {"dropout_rate": 0.0})
    config.optimizer.update(name="adamw", learning_rate=2e-3)
    base.use_size(config, preset, architectures.MASS)
    if preset not in DIAL:
        config.optimizer.update(schedule="inverse_sqrt", learning_rate=1e-4, warmup_steps=4000, clip_norm=5.0)
        recipes.use_long_run(config)
        config.train.update(batch_size=96, steps=500_000)
        machines.use_machine(config, preset, {})
    return config
