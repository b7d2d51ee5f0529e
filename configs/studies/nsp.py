"""Does next sentence prediction help, and does sentence order prediction? Devlin et al. (2019), Lan et al. (2020).

    python -m train.ablate --study=configs/studies/nsp.py --out=studies/nsp

  mlm_only        BERT's pairs of sentences, half of them of two documents, without NSP's loss: the control of nsp
  nsp             the same pairs and masks, with that loss
  sop             pairs from one document, in either order, with the loss of sentence order prediction
  sop_mlm_only    the same pairs and masks as sop, without that loss: its control
  single_texts    MLM of single texts, as in RoBERTa: the question whether pairs themselves cost something

Measures:
  mlm_loss              held-out loss of masked tokens of single texts, under configs/mlm.py
  pair_accuracy         of the pair's label, in each run's own pairs; 0.5 is chance: whether a model this small learns
                        the task at all. NSP's and SOP's are different tasks. single_texts has none.
  accuracy, macro_f1    after the same fine-tuning

Why this is fair: all variants have the same encoder with sentence types, masking of single tokens, learning rate and
raw tokens; nsp and sop add a classifier of the pair, which its control has too but does not train. The pair's loss has
the effect of nsp minus mlm_only, and of sop minus sop_mlm_only; single_texts minus mlm_only is the effect of the pairs.
Where pair_accuracy is near 0.5, the model has not learned the task, and the study says nothing about its use. No
published numbers could be confirmed.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, raw_tokens, study, variant

# configs/sop.py masks words as ALBERT does; here all variants mask as BERT does.
_BERT_MASKS = {"objective.mask_unit": "token", "objective.ngram_weights": (1.0,)}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/nsp.py",
        baseline="mlm_only",
        variants={
            "mlm_only": variant(config="configs/nsp.py:mlm_only"),
            "nsp": variant(),
            "sop": variant(_BERT_MASKS, config="configs/sop.py"),
            "sop_mlm_only": variant(_BERT_MASKS, config="configs/sop.py:mlm_only"),
            "single_texts": variant(config="configs/mlm.py"),
        },
        budget=raw_tokens(1_000_000),
        measures={
            **common.classification(),
            "mlm_loss": heldout_loss(config="configs/mlm.py", overrides={"data.documents": "split"}),
            "pair_accuracy": heldout_loss(
                metric="pair_accuracy", better="higher", only=("mlm_only", "nsp", "sop", "sop_mlm_only")
            ),
        },
        overrides=common.SHORT_RUNS | {"model.num_token_types": 2, "data.documents": "split"},
    )
