"""Masked language modelling (Devlin et al. 2019): 15% selected, of which 80% masked, 10% random, 10% kept.

    python -m train.main --config=configs/mlm.py

Presets: tiny (default), base, large (BERT). BERT's learning rate falls linearly to 0; here it is a cosine to 0.

Tiny on two CPU cores that had other work to do: 6 minutes, 500 steps, held-out loss 3.422; the corpus' unigram
entropy is 3.236. So this short a run knows the frequencies of bytes and no more; raise train.steps to go on from it.
"""

from ml_collections import ConfigDict

from configs import architectures, base


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    config.objective = ConfigDict({"name": "mlm", "mask_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1})
    config.loss.z_loss = 0.0
    config.data.inputs_length = 256
    config.train.batch_size = 8
    config.train.steps = 500
    config.model.update(architectures.BERT["base"] | base.TINY_SIZES | {"num_layers": 4, "dropout_rate": 0.0})
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    if base.is_paper_scale(config, preset, architectures.BERT):
        config.data.inputs_length = 512
        config.optimizer.learning_rate = 1e-4
        config.optimizer.warmup_steps = 10_000
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.b2 = 0.999
        config.optimizer.eps = 1e-6
        config.optimizer.weight_decay = 0.01
        config.train.batch_size = 256
        config.train.steps = 1_000_000
        base.watch_long_run(config)
    return config
