r"""Classification, to evaluate a pre-trained model on a downstream task: which package does a source file belong to?

    python -m train.main --config=configs/mlm.py
    python -m train.main --config=configs/classification.py --config.train.init_from=runs/mlm
    python -m train.main --config=configs/classification.py --config.model.architecture=decoder_only
    python -m train.main --config=configs/classification.py --config.model.architecture=encoder_decoder
    python -m train.main --config=configs/classification.py --config.data.source=jsonl --config.data.path=mine.jsonl \
        --config.objective.classes="('bad', 'good')" --config.data.on_unusable=error

--config.objective.pooling=mean predicts the class from the mean of the text's states, in place of the state at [CLS] or
at the last token. Without train.init_from the model is trained from scratch. In your own data each line is
{"text": ..., "label": ...}.

The held-out modules are those that configs/mlm.py holds out. Modules outside the packages below are excluded, and the
run prints their number at the start.

Presets: tiny (default), base, large (BERT, with its GLUE settings: batches of 32, about 3 epochs of 50,000 examples).

Tiny on two CPU cores, from configs/mlm.py's run: 300 steps, held-out loss 1.339 per text (standard error 0.256),
accuracy 0.45, macro F1 0.19. Held out are 20 modules of the seven packages.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, mlm, recipes
from configs.sizes import DIAL

# Packages of 13 or more modules that every installation of Python 3.11 and later has.
PACKAGES = ("asyncio", "email", "encodings", "importlib", "multiprocessing", "unittest", "xml")


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = mlm.get_config()
    config.objective = ConfigDict({"name": "classification", "classes": PACKAGES, "pooling": "position"})
    config.data.update(documents="split", on_unusable="skip", inputs_length=256)
    config.data.targets_length = 1  # an encoder-decoder predicts the class from one position of its decoder
    config.data.bidirectional_inputs = False
    config.optimizer.learning_rate = 5e-4
    config.train.update(steps=300, eval_every=100)
    base.use_size(config, preset, architectures.BERT)
    if preset not in DIAL:
        config.precision = "bfloat16"
        config.data.inputs_length = 512
        recipes.use_bert_optimizer(config)
        config.optimizer.update(learning_rate=2e-5, warmup_steps=500)
        config.train.update(batch_size=32, steps=5000)
        machines.use_machine(config, preset, {})
    return config
