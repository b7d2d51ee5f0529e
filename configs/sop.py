"""ALBERT's objectives (Lan et al. 2020): masked words, and sentence order prediction (SOP): are A and B swapped?

    python -m train.main --config=configs/sop.py
    python -m train.main --config=configs/sop.py:mlm_only

As in ALBERT, runs of one to three words are masked. Sizes: tiny (default), base, large, with BERT's shapes and recipe,
to be comparable with configs/nsp.py. Deviation: ALBERT shares the parameters of one layer among all layers. Variants:
  sop        default: the sum of the two losses
  mlm_only   an ablation: exactly the same pairs, sentence types and masks, without the SOP loss

Tiny on two CPU cores: 1000 steps, held-out loss 2.370 per token of masked whole words (standard error 0.048), SOP
accuracy 0.52: a tiny model does not learn the order of lines of code in this time.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm, nsp

_SOP = nsp.VARIANTS["nsp"] | mlm.VARIANTS["ngram"] | dict(name="sop")
VARIANTS = {"sop": _SOP, "mlm_only": _SOP | dict(pair_weight=0.0)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = nsp.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    return config
