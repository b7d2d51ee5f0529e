"""Causal language modelling: GPT-2's and Llama's shapes. Documents are packed and never see each other.

    python -m train.main --config=configs/clm.py
    python -m train.main --config=configs/clm.py --config.data.documents=join  # as GPT-2: attention across documents

Presets: tiny (default: Llama's pieces), base or small, medium, large, xl (GPT-2: 124M, 355M, 774M, 1.6B), 7b, 13b, 70b
(Llama, Llama 2).

Tiny on two CPU cores that had other work to do: 6 minutes, 500 steps, held-out loss 1.626, 2.35 bits per byte; the
corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base

SIZES = {"base": architectures.GPT2["small"], **architectures.GPT2, **architectures.LLAMA, **architectures.LLAMA2}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    config.objective = ConfigDict({"name": "clm"})
    config.loss.z_loss = 0.0
    config.data.documents = "pack"
    config.data.inputs_length = 256
    config.train.batch_size = 8
    config.train.steps = 500
    config.data.targets_length = 256
    config.model.update(architectures.LLAMA["7b"] | base.TINY_SIZES | {"num_layers": 4})
    if base.is_paper_scale(config, preset, SIZES):
        config.data.inputs_length = 1024 if preset in {"base", *architectures.GPT2} else 2048
        config.data.targets_length = config.data.inputs_length
        config.optimizer.name = "adamw"
        config.optimizer.learning_rate = 3e-4
        config.optimizer.warmup_steps = 2000
        config.optimizer.b2 = 0.95
        config.optimizer.weight_decay = 0.1
        config.train.batch_size = 512
        config.train.steps = 600_000
        base.watch_long_run(config)
    return config
