"""UniLM (Dong et al. 2019): masked language modeling with one encoder under four attention patterns.

    python -m train.main --config=configs/unilm.py
    python -m train.main --config=configs/unilm.py:sequence_to_sequence

80% of the masks cover one token, 10% two consecutive tokens and 10% three. Sizes: tiny (default), base, large (BERT's
shapes and recipe). UniLM itself started from BERT large; for that set train.init_from. Variants:
  unilm   default: 1/3 bidirectional, 1/3 sequence_to_sequence, 1/6 left_to_right, 1/6 right_to_left
  bidirectional, left_to_right, right_to_left, sequence_to_sequence    each pattern alone

Tiny on two CPU cores: 600 steps, held-out loss 2.325 (standard error 0.055; bidirectional 2.14, left_to_right 2.46);
the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

_UNILM = mlm.VARIANTS["bert"] | dict(name="unilm", ngram_weights=(0.8, 0.1, 0.1))
_WEIGHTS = {"bidirectional": 1 / 3, "sequence_to_sequence": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
_MIXTURE = base.mixture(
    {name: base.denoiser(mode="", weight=weight, **_UNILM, attention=name) for name, weight in _WEIGHTS.items()}
)
VARIANTS = {"unilm": _MIXTURE} | {name: _UNILM | dict(attention=name) for name in _WEIGHTS}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
