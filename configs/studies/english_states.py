"""From which objective's frozen states does a linear classifier read most, after the same English text?

    python -m train.ablate --study=configs/studies/english_states.py --out=studies/english_states

Nine objectives train one model of 0.35M parameters (configs/studies/english.py, which names the files that it needs),
each at the best of three learning rates: MLM at three rates and ELECTRA on an encoder, the others on a decoder.

  loss                        of each objective's own examples; it chooses the learning rate, and is not compared
  subj_100, subj_500, mr_500  accuracy of a logistic regression on frozen states, by labelled texts

The tasks and the label counts are those on which english_curve saw pre-training. The floor of an accuracy is the same
regression on a Transformer with new parameters.

A decoder reads a text from the left, and span corruption's in both directions; states are means over the text. Rows of
128 tokens hold fewer raw tokens of span corruption, because inputs and targets share them. At equal text MLM has fewer
FLOPs than CLM: it computes the logits of its masks alone.
"""

from configs.studies import common, english
from configs.studies.base import heldout_loss, raw_tokens, study

VARIANTS = ("clm", "span_corruption", "mlm_15", "mlm_30", "mlm_50", "prefix_lm", "electra", "ul2", "hybrid")


def get_study():
    """Returns the study."""
    accuracies = english.linear(("subj", "mr"))
    del accuracies["mr_100"]
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline=VARIANTS[0],
        variants={name: english.objective(name) for name in VARIANTS},
        budget=raw_tokens(3_000_000),
        measures={"loss": heldout_loss(), **accuracies},
        overrides=english.MODEL,
        same_model="configs/clm.py",
        varies=("model.architecture",),  # encoders predict in place
        sweep={"optimizer.learning_rate": (0.02, 0.05, 0.1)},
    )
