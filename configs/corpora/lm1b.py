"""LM1B, the One Billion Word Benchmark (Chelba et al. 2013): sentences of news in shuffled order.

    export TFDS_DATA_DIR=/data/tfds
    tfds build lm1b --file_format=array_record
    python -m train.main --config=configs/corpora/lm1b.py:clm,base --config.data.tokenizer=english.model \
        --config.data.documents=pack

A preset names a config and its preset (configs/corpora/__init__.py); by default "clm". A document is one sentence, and
neighbouring sentences are of different texts, so the objectives over pairs of sentences, nsp and sop, are refused. With
data.documents="pack" no sentence attends to another. The held-out text is LM1B's test split.
"""

from ml_collections import ConfigDict

from configs import corpora


def get_config(preset: str = "clm") -> ConfigDict:
    """Returns the experiment of a preset on LM1B. Raises ValueError for "nsp" and "sop"."""
    if (name := preset.partition(",")[0]) in ("nsp", "sop"):
        raise ValueError(
            f"{name!r} needs documents of several sentences, and those of LM1B are single sentences: use C4"
        )
    return corpora.on_corpus(preset, dict(source="tfds", path="lm1b", heldout_path="test"))
