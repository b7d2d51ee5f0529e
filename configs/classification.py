r"""Classification, to judge a pre-trained model downstream: which package of the library a piece of code is from.

    python -m train.main --config=configs/mlm.py
    python -m train.main --config=configs/classification.py --config.train.init_from=runs/mlm  # or from nothing
    python -m train.main --config=configs/classification.py --config.model.architecture=decoder_only
    python -m train.main --config=configs/classification.py --config.data.source=jsonl --config.data.path=mine.jsonl \
        --config.objective.classes="('bad', 'good')" --config.data.on_unusable=error

Of your own data each line is {"text": ..., "label": ...}. A fifth of the documents is held out, whole: no piece of a
held-out module is trained on. Modules outside the packages named are left out, and the start says how many.

Presets: tiny (default), base, large (BERT, with its settings for GLUE: batches of 32, 3 epochs of 50,000 examples).

Tiny on two CPU cores, from configs/mlm.py's run: 300 steps, held-out loss 1.199 a text, accuracy 0.53, macro F1 0.22.
Held out are 48 modules of seven packages, of which the largest has 0.4 of the text.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

# Packages of 13 modules and more that every installation of Python 3.11 and later has.
PACKAGES = ("asyncio", "email", "encodings", "importlib", "multiprocessing", "unittest", "xml")


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = mlm.get_config()
    config.objective = ConfigDict({"name": "classification", "classes": PACKAGES})
    config.data.documents = "split"
    config.data.on_unusable = "skip"
    config.data.heldout_fraction = 0.2
    config.data.inputs_length = 256
    config.data.bidirectional_inputs = False
    config.optimizer.learning_rate = 5e-4
    config.train.steps = 300
    config.train.eval_every = 100
    config.train.eval_batches = 64
    if base.is_paper_scale(config, preset, architectures.BERT):
        config.precision = "bfloat16"
        config.data.inputs_length = 512
        config.optimizer.schedule = "linear"
        config.optimizer.learning_rate = 2e-5
        config.optimizer.warmup_steps = 500
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.b2 = 0.999
        config.optimizer.eps = 1e-6
        config.optimizer.weight_decay = 0.01
        config.train.batch_size = 32
        config.train.steps = 5000
    return config
