"""A config file of three corpora, whose rates are shares of the tokens.

Each corpus is read in another way, and the paths are set on the command line. CLM scores every token that it reads.
"""

from ml_collections import ConfigDict

from configs.base import corpus, use_corpora
from tests.table import small_config

RATES = {"modules": 0.6, "labelled": 0.3, "pairs": 0.1}


def get_config() -> ConfigDict:
    config = ConfigDict(small_config("clm", "decoder_only", model__num_layers=1, model__d_model=32))
    fields = {
        "modules": {"source": "text", "documents": "pack"},
        "labelled": {"source": "jsonl", "documents": "split"},
        "pairs": {"source": "jsonl", "documents": "join"},
    }
    use_corpora(config, {name: corpus(**fields[name], weight=10 * rate) for name, rate in RATES.items()})
    config.data.mix_by = "token"
    config.train.update({"steps": 60, "batch_size": 64, "log_every": 1, "eval_every": 30, "checkpoint_every": 10})
    return config
