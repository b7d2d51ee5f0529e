"""Which objective learns most from the same English text: for classifiers, for grammar, and for continuing text?

    python -m train.ablate --study=configs/studies/english_objectives.py --out=studies/english_objectives

Eleven objectives train one model of 0.35M parameters (configs/studies/english.py, which names the files that it needs).
VARIANTS is the list of those that are run; the first is the baseline.

  subj_100, subj_500, mr_*, trec_*, proscons_*   accuracy of a logistic regression on frozen states, by labelled texts
  blimp           share of the pairs of BLiMP whose grammatical sentence is likelier
  continuation    of the objectives that continue text: bits per byte of the second half of a text

The floor of an accuracy is the same regression on a Transformer with new parameters, so a task that does not need
pre-training gives no verdict. The floor of BLiMP is chance.

Why this is fair: all variants have one model, optimizer, learning rate, rows and number of raw tokens, and a measure
scores the same texts of every run. Where it is not fair: prefix LM and BART spend more FLOPs on the same text than CLM,
and span corruption, UL2, MLM and ELECTRA fewer; BART has twice the updates; ELECTRA trains a generator too; and mlm_*,
electra and masked_diffusion are encoders. BLiMP is by likelihood for models that continue text, and by
pseudo-likelihood, one token hidden at a time, for the others. The learning rate is not tuned for each objective.
"""

from configs.studies import common, english
from configs.studies.base import raw_tokens, study

VARIANTS = english.OBJECTIVES


def get_study():
    """Returns the study."""
    continues = [name for name in VARIANTS if name in english.CONTINUES]
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline=VARIANTS[0],
        variants={name: english.objective(name) for name in VARIANTS},
        budget=raw_tokens(1_000_000),
        measures={**english.linear(), **english.blimp(), **common.continuation(only=continues)},
        overrides=english.MODEL,
        same_model="configs/clm.py",
        varies=("model.architecture",),  # encoders predict in place
        seeds=3,
    )
