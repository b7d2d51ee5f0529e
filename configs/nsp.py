"""BERT's two objectives (Devlin et al. 2019): masked tokens, and next sentence prediction (NSP): does B follow A?

    python -m train.main --config=configs/nsp.py
    python -m train.main --config=configs/nsp.py:mlm_only

Sizes: tiny (default: as in configs/mlm.py, with more steps), base, large (BERT, with sentence types and a pooler).
Variants:
  nsp        default: the sum of the two losses, as in BERT
  mlm_only   an ablation: exactly the same pairs, sentence types and masks, without the NSP loss

Tiny on two CPU cores: 1000 steps, held-out loss 1.461 per masked token (standard error 0.032), NSP accuracy 0.56.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm
from configs.sizes import DIAL

_NSP = mlm.VARIANTS["bert"] | dict(
    name="nsp",
    sentence_ends="stops_and_newlines",  # for source code; "stops" is enough for English
    short_seq_prob=0.1,
    pair_weight=1.0,
)
VARIANTS = {"nsp": _NSP, "mlm_only": _NSP | dict(pair_weight=0.0)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.documents = "split"
    if size in DIAL:
        config.train.steps = 1000
    return config
