"""Causal language modeling with GPT-2's and Llama's shapes. Documents are packed and do not see each other.

    python -m train.main --config=configs/clm.py
    python -m train.main --config=configs/clm.py --config.data.documents=join  # as in GPT-2: attention across documents

Presets: tiny (default: small Llama blocks); small (also named base), medium, large, xl (GPT-2: 124M, 355M, 774M, 1.6B);
7b, 13b (Llama); 70b (Llama 2). These have the optimizer of the Llama papers, because that of GPT-2 was not published.
600,000 batches of 512 rows are a choice of this codebase; Llama's batches have 4M tokens. Deviation: the rows of 70b
have 2,048 tokens, as Llama's do, and Llama 2's have 4,096, for which the 70b of configs/next_latent.py and
configs/future_summary.py need a larger machine.

ettin_17m, ettin_32m, ettin_68m, ettin_150m, ettin_400m and ettin_1b are Ettin's decoders (Weller et al. 2025): the
shapes, optimizer, rows and batches of the encoders of configs/mlm.py (configs/recipes.py, with the deviations), so that
a pair differs in the objective and in what a token sees.

Tiny on two CPU cores: 500 steps, held-out loss 1.926 (standard error 0.039), 2.78 bits per byte; the corpus's
unigram entropy is 3.236, and a trigram model has a loss of 1.933 on the same windows.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

SIZES = {"base": architectures.GPT2["small"], **architectures.GPT2, **architectures.LLAMA, **architectures.LLAMA2}
FITS = {**machines.GPT2, **machines.LLAMA}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    config.objective = ConfigDict({"name": "clm"})
    config.loss.z_loss = 0.0
    config.data.update(documents="pack", inputs_length=256, targets_length=256)
    config.model.update(architectures.LLAMA["7b"] | base.TINY_SIZES | {"num_layers": 4})
    config.train.update(batch_size=8, steps=500)
    base.use_size(config, preset, SIZES | architectures.ETTIN_DECODERS)
    if preset in architectures.ETTIN_DECODERS:
        recipes.use_encoder_recipe(config, preset)
        config.objective = ConfigDict({"name": "clm"})
        config.data.targets_length = config.data.inputs_length
        machines.use_machine(config, preset, {})
    elif preset not in DIAL:
        recipes.use_llama_recipe(config)
        if preset in architectures.LLAMA2:  # arXiv 2307.09288, section 2.2
            config.optimizer.update(learning_rate=1.5e-4, eps=1e-5)
        config.data.inputs_length = 1024 if preset in {"base", *architectures.GPT2} else 2048
        config.data.targets_length = config.data.inputs_length
        config.train.update(batch_size=512, steps=600_000)
        machines.use_machine(config, preset, FITS)
    return config
