r"""Supervised fine-tuning: prompts and responses, of which only the responses are scored, packed whole into rows.

    python -m train.main --config=configs/clm.py
    python -m train.main --config=configs/sft.py --config.train.init_from=runs/clm     # or from nothing, without it
    python -m train.main --config=configs/sft.py:7b --config.data.source=jsonl --config.data.path=pairs.jsonl \
        --config.data.tokenizer=llama.model --config.train.init_from=...

Of your own data each line is {"prompt": ..., "response": ...}. Tiny reads the standard library's documented functions:
from signature and docstring to the body. It leaves out those that a row has no room for, and says how many.

Presets: those of configs/clm.py. Beyond tiny the optimizer is Stanford Alpaca's: 3 epochs of its 52,000 pairs. On an
encoder-decoder (--config.model.architecture=encoder_decoder), which reads prompts that end in EOS, add
--config.objective.inputs_eos=True.

Tiny on two CPU cores, from nothing: 400 steps, held-out loss 2.055 per token of the response.
"""

from ml_collections import ConfigDict

from configs import clm


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = clm.get_config(preset)
    config.objective = ConfigDict({"name": "sft", "inputs_eos": False})
    config.data.source = "stdlib_functions"
    config.data.documents = "whole"
    config.data.on_unusable = "skip"
    config.data.bidirectional_inputs = False
    config.data.inputs_length = 512
    config.data.targets_length = 512
    config.train.batch_size = 4
    config.train.steps = 400
    if preset != "tiny":
        config.data.on_unusable = "error"
        config.optimizer.learning_rate = 2e-5
        config.optimizer.warmup_steps = 36
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.weight_decay = 0.0
        config.train.batch_size = 128
        config.train.steps = 1218
    return config
