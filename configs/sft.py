r"""Supervised fine-tuning: prompts and responses, packed whole into rows. Only the responses are scored.

    python -m train.main --config=configs/clm.py
    python -m train.main --config=configs/sft.py --config.train.init_from=runs/clm
    python -m train.main --config=configs/sft.py:7b --config.data.source=jsonl --config.data.path=pairs.jsonl \
        --config.data.tokenizer=llama.model --config.train.init_from=...

Without train.init_from the model is trained from scratch. In your own data each line is {"prompt": ..., "response":
...}. Tiny uses the documented functions of the standard library: signature and docstring are the prompt, the body is
the response. Functions too long for a row are excluded, and the run prints their number at the start.

Presets: as in configs/clm.py. Larger presets train as Stanford Alpaca (the table in its README, the train command
below the table, and the defaults of Hugging Face's Trainer): 3 epochs, 5 for 13b; AdamW with b2 0.999 at 2e-5, 1e-5 for
13b; a cosine decay to 0 without weight decay; rows of 512 tokens. What differs, because rows are packed:
  train.batch_size        32 rows. Alpaca has batches of 128 pairs, one in each row; about 4 of its pairs fit in 512
                          tokens. For shorter or longer pairs set as many rows as hold 128 pairs.
  optimizer.warmup_steps  37: Alpaca's 3% of the 1,218 steps that it makes with 52,000 pairs. For another corpus set 3%
                          of the number of steps, which the run prints at its start.
An encoder-decoder (--config.model.architecture=encoder_decoder) was pre-trained on inputs that end in EOS: add
--config.objective.inputs_eos=True.

Tiny on two CPU cores, from scratch: 400 steps, held-out loss 2.122 per token of the response (standard error 0.024).
"""

from ml_collections import ConfigDict

from configs import clm, machines
from configs.sizes import DIAL


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = clm.get_config(preset)
    config.objective = ConfigDict({"name": "sft", "inputs_eos": False})
    config.data.update(source="stdlib_functions", documents="whole", on_unusable="skip", bidirectional_inputs=False)
    config.data.update(inputs_length=512, targets_length=512)
    config.train.update(batch_size=4, steps=400)
    if preset not in DIAL:
        config.data.on_unusable = "error"
        config.optimizer.update(learning_rate=1e-5 if preset == "13b" else 2e-5, warmup_steps=37)
        config.optimizer.update(final_learning_rate_fraction=0.0, b2=0.999, eps=1e-8, weight_decay=0.0)
        config.train.update(batch_size=32, steps=0, epochs=5.0 if preset == "13b" else 3.0)
        machines.use_machine(config, preset, clm.FITS)
    return config
