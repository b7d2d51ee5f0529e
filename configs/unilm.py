"""UniLM (Dong et al. 2019): one encoder, masked language modelling under four attention patterns by turns.

    python -m train.main --config=configs/unilm.py
    python -m train.main --config=configs/unilm.py:sequence_to_sequence

Sizes: tiny (default), base, large (BERT's shapes and settings). UniLM itself went on from BERT large, as
--config.train.init_from does here. Variants:
  unilm   default: bidirectional and sequence to sequence a third each, left to right and right to left a sixth each
  bidirectional, left_to_right, right_to_left, sequence_to_sequence    each pattern alone
Of what is masked 80% are single tokens, 10% each are two and three in a row.

Tiny on two CPU cores: 600 steps, held-out loss 2.270 (bidirectional 2.06, left_to_right 2.35); the corpus' unigram
entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

_UNILM = mlm.VARIANTS["bert"] | dict(name="unilm", ngram_weights=(0.8, 0.1, 0.1))
_SHARES = {"bidirectional": 1 / 3, "sequence_to_sequence": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
_MIXTURE = dict(
    name="mixture",
    mix_by="example",
    schedule="constant",
    denoisers={
        attention: _UNILM | dict(attention=attention, mode="", weight=share) for attention, share in _SHARES.items()
    },
)
VARIANTS = {"unilm": _MIXTURE} | {attention: _UNILM | dict(attention=attention) for attention in _SHARES}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
