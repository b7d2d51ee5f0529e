"""PEGASUS (Zhang et al. 2020): an encoder reads a text without its main sentences, and the decoder writes them.

    python -m train.main --config=configs/pegasus.py
    python -m train.main --config=configs/pegasus.py:random
    python -m train.main --config=configs/pegasus.py:large --config.objective.sentence_ends=stops

Sizes: tiny (default: small T5 blocks), base, large (published with 223M and 568M parameters, and a vocabulary of 96k;
learned positions in place of sinusoidal ones). Variants, by how the 30% of the sentences are chosen:
  principal   default: by their ROUGE-1 F1 against the rest of the text (the paper's Ind-Orig)
  random, lead    at random; the first ones
A line break ends a sentence too, because the default corpus is source code. For English set
objective.sentence_ends="stops".
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

VARIANTS = {
    select: dict(name="pegasus", select=select, gap_ratio=0.3, most_hidden=0.5, sentence_ends="stops_and_newlines")
    for select in ("principal", "random", "lead")
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, architectures.PEGASUS, VARIANTS)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.update(inputs_length=256, targets_length=128)
    base.use_size(config, size, architectures.PEGASUS)
    if size not in DIAL:
        recipes.use_t5_recipe(config)
        config.loss.z_loss = 0.0
        config.data.targets_length = 256
        config.train.update(batch_size=8192 if size == "large" else 256, steps=500_000)
        machines.use_machine(config, size, machines.PEGASUS)
    return config
