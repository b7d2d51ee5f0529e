"""BERT whole (Devlin et al. 2019): masked tokens, and whether sentence B follows sentence A (NSP).

    python -m train.main --config=configs/nsp.py
    python -m train.main --config=configs/nsp.py:mlm_only

Sizes: tiny (default: configs/mlm.py's, for longer: until MLM knows some of the language pairs are a coin's toss),
base, large (BERT, with sentence types and pooler). Variants:
  nsp        default: the loss is MLM's and the pair's, unweighted, as in BERT
  mlm_only   the ablation: the same pairs, types and masks to the bit, and no loss of the pair, which stays a toss

Tiny on two CPU cores: 1000 steps, held-out loss 1.264 of masked tokens, 0.65 of the pairs told right; of the pairs
hardly more than half until about step 600.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

_NSP = mlm.VARIANTS["bert"] | dict(
    name="nsp",
    sentence_ends="stops_and_newlines",  # English needs only "stops"
    short_seq_prob=0.1,
    pair_weight=1.0,
)
VARIANTS = {"nsp": _NSP, "mlm_only": _NSP | dict(pair_weight=0.0)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.documents = "split"
    if size == "tiny":
        config.train.steps = 1000
    return config
