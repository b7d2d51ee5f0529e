"""C4, the English web text of T5 and UL2 (Raffel et al. 2020), with its own held-out split.

    export TFDS_DATA_DIR=/data/tfds
    tfds build c4/en --file_format=array_record
    python -m train.main --config=configs/corpora/c4.py:ul2,base --config.data.tokenizer=english.model
    python -m train.main --config=configs/corpora/c4.py:ul2,base --config.data.tokenizer=english.model \
        --config.data.source=hf --config.data.path=allenai/c4/en

UL2 above the size tiny needs a tokenizer of `python -m data.train_tokenizer --num_sentinels=128`.

A preset names a config and its preset (configs/corpora/__init__.py); by default "span_corruption", T5's objective.
The held-out text is C4's validation split. C4 has 365 million documents of training text: prepare them with
`python -m data.prepare` and the same fields of data, on all cores, before the first run does so on one.
"""

from ml_collections import ConfigDict

from configs import corpora


def get_config(preset: str = "span_corruption") -> ConfigDict:
    """Returns the experiment of a preset on C4."""
    return corpora.on_corpus(preset, dict(source="tfds", path="c4/en", heldout_path="validation"))
