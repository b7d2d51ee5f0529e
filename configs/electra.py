"""ELECTRA (Clark et al. 2020): a small generator fills in masks, a discriminator detects replaced tokens.

    python -m train.main --config=configs/electra.py
    python -m train.main --config=configs/electra.py:base,gdes

Sizes: tiny (default), small, base, large (the reference's). Variants, by objective.embedding_sharing:
  shared       default: generator and discriminator have one table of tokens (ELECTRA)
  gdes         the discriminator's is the generator's plus a difference, and trains the difference alone (DeBERTaV3)
  none         a table for each

config.model is the discriminator. The generator has objective.generator_layers times the depth, which is the same in
ELECTRA, and objective.generator_size times the width. The reported loss is the generator's, which is not comparable
with the loss of an MLM of the discriminator's size. metrics.jsonl has the discriminator's metrics too. Deviations: Adam
corrects the bias of its moments; the reference does not. DeBERTaV3 shares the tables of tokens and of positions so, and
here that of types too; all else is ELECTRA's, where DeBERTaV3's code has a generator of the same width and half the
depth (objective.generator_size=1.0, generator_layers=0.5), shows every selected token as [MASK] (mask_token_rate=1.0),
weights the discriminator's loss by 10 (discriminator_weight=10.0), and has an optimizer for each model. Further ones:
use_bert_optimizer in configs/recipes.py.

At tiny's learning rate, 2e-3, both models learn. At 4e-3 the generator is better, but the discriminator finds almost no
replaced token.

Tiny on two CPU cores: 600 steps, held-out loss of the generator 2.046 (standard error 0.027), of the discriminator
0.265. The discriminator finds 0.09 of the replaced tokens, with a precision of 0.59. The corpus's
unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, mlm, recipes
from configs.sizes import DIAL

VARIANTS = {sharing: dict(embedding_sharing=sharing) for sharing in ("shared", "gdes", "none")}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.ELECTRA, VARIANTS)
    config = base.get_config()
    config.objective = ConfigDict(
        mlm.VARIANTS["bert"]
        | dict(name="electra", mask_token_rate=0.85, random_token_rate=0.0, temperature=1.0)
        | dict(generator_size=0.25, generator_layers=1.0, generator_weight=1.0, discriminator_weight=50.0)
        | VARIANTS[variant]
    )
    config.loss.z_loss = 0.0
    config.model.update(architectures.TINY_ENCODER)
    config.optimizer.update(name="adamw", learning_rate=2e-3)
    base.use_size(config, size, architectures.ELECTRA)
    if size not in DIAL:
        recipes.use_bert_recipe(config)
        config.objective.update({"base": {"generator_size": 1 / 3}, "large": {"mask_rate": 0.25}}.get(size, {}))
        config.data.inputs_length = 128 if size == "small" else 512
        config.optimizer.learning_rate = 5e-4 if size == "small" else 2e-4
        config.train.batch_size = {"small": 128, "base": 256, "large": 2048}[size]
        config.train.steps = {"small": 1_000_000, "base": 766_000, "large": 400_000}[size]
        machines.use_machine(config, size, machines.BERT)
    return config
