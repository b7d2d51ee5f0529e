"""ELECTRA (Clark et al. 2020): a small generator fills in masks, a discriminator finds the tokens that it got wrong.

    python -m train.main --config=configs/electra.py

Presets: tiny (default), small, base, large (the reference's). `config.model` is the discriminator; the generator has
its depth and `objective.generator_size` of its width. The loss reported is the generator's, so it is not comparable
with an MLM of the discriminator's size; the discriminator's numbers stand beside it in metrics.jsonl. The reference
leaves out Adam's bias correction; here it is in.

Tiny at 4e-3 has the better generator and a discriminator that finds next to nothing; at 2e-3 both learn.

Tiny on two CPU cores: 600 steps, held-out loss of the generator 1.960; of the discriminator 0.257, which finds 0.12 of
the replaced tokens with a precision of 0.76. The corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    config.objective = ConfigDict(
        {
            "name": "electra",
            "mask_rate": 0.15,
            "mask_token_rate": 0.85,
            "generator_size": 0.25,
            "generator_weight": 1.0,
            "discriminator_weight": 50.0,
            "temperature": 1.0,
        }
    )
    config.loss.z_loss = 0.0
    config.model.update(architectures.TINY_ENCODER)
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    if base.is_paper_scale(config, preset, architectures.ELECTRA):
        config.objective.update({"base": {"generator_size": 1 / 3}, "large": {"mask_rate": 0.25}}.get(preset, {}))
        config.data.inputs_length = 128 if preset == "small" else 512
        config.optimizer.schedule = "linear"
        config.optimizer.learning_rate = 5e-4 if preset == "small" else 2e-4
        config.optimizer.warmup_steps = 10_000
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.b2 = 0.999
        config.optimizer.eps = 1e-6
        config.optimizer.weight_decay = 0.01
        config.train.batch_size = {"small": 128, "base": 256, "large": 2048}[preset]
        config.train.steps = {"small": 1_000_000, "base": 766_000, "large": 400_000}[preset]
        base.watch_long_run(config)
    return config
