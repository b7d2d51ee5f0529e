"""How many tokens of English, which size and how many labels does a task need to show pre-training?

    for tokens in 2.5e5 1e6 4e6; do
      python -m train.ablate --study=configs/studies/english_curve.py --budget=$tokens --out=studies/curve_$tokens
    done

One budget is one folder, as in configs/studies/scaling.py. CLM and MLM train models of the sizes in SIZES
(configs/studies/english.py, which names the files that they need).

  subj_100, subj_500, subj_all, mr_*, ...   accuracy of a logistic regression on frozen states, by labelled texts
  tuned_subj_500, tuned_subj_train, ...     accuracy after fine-tuning mean-pooled states, by labelled texts

The floor of the regressions is a Transformer with new parameters, and that of fine-tuning is fine-tuning from new
parameters, so each folder says which tasks and label counts have power at its number of tokens. The corpus has about
7.4M tokens to train on. Runs of the size "s" take four times as long as those of "xs".
"""

from configs.studies import common, english
from configs.studies.base import raw_tokens, study

SIZES = ("xs",)


def get_study():
    """Returns the study."""
    tuned = {
        f"tuned_{task}_{part}": english.fine_tuned(task, part, steps)
        for task in english.TASKS
        for part, steps in (("500", 100), ("train", 300))
    }
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline=f"clm_{SIZES[0]}",
        variants={
            f"{name}_{size}": english.objective(objective, size)
            for name, objective in (("clm", "clm"), ("mlm", "mlm_15"))
            for size in SIZES
        },
        budget=raw_tokens(1_000_000),
        measures={**english.linear(counts=("100", "500", "all")), **tuned},
        overrides=english.MODEL,
        same_model="configs/clm.py",
        varies=("model.architecture",),
        seeds=3,
    )
