"""English Wikipedia of 1 June 2023: the larger part of BERT's text (Devlin et al. 2019) in a newer edition.

    export TFDS_DATA_DIR=/data/tfds
    tfds build wikipedia/20230601.en --file_format=array_record
    python -m train.main --config=configs/corpora/wikipedia.py:mlm,base --config.data.tokenizer=english.json

A preset names a config and its preset (configs/corpora/__init__.py); by default "mlm", BERT's objective. Wikipedia has
no held-out split, so a hundredth of the articles is held out (data.heldout_fraction).
"""

from ml_collections import ConfigDict

from configs import corpora


def get_config(preset: str = "mlm") -> ConfigDict:
    """Returns the experiment of a preset on Wikipedia."""
    return corpora.on_corpus(preset, dict(source="tfds", path="wikipedia/20230601.en", heldout_fraction=0.01))
