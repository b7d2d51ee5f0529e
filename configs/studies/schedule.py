"""Which learning-rate schedule is best, each with its own learning rate?

    python -m train.ablate --study=configs/studies/schedule.py --out=studies/schedule

Cosine, linear, warm-up-stable-decay (Hu et al. 2024), inverse square root (Raffel et al. 2020) and constant schedules
of span corruption with RMS-scaled AdamW. Each schedule's learning rate is the best of three, tried with a seed that the
comparison does not use; the sweep is in the report.

  loss          the run's own held-out loss, comparable here because all variants have one objective
  infilling_8   bits per byte of one hidden span of 8 tokens

Why this is fair: everything but the schedule and the swept rate is equal: parameters, FLOPs, raw tokens, order of data.
A swept rate at the end of its range means that a better one may lie outside.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, published, raw_tokens, study, variant


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/span_corruption.py",
        baseline="cosine",
        variants={
            name: variant({"optimizer.schedule": name})
            for name in ("cosine", "linear", "wsd", "inverse_sqrt", "constant")
        },
        budget=raw_tokens(1_000_000),
        measures={"loss": heldout_loss(), **common.infilling(spans=(8,))},
        overrides=common.SHORT_RUNS,
        sweep={"optimizer.learning_rate": (1e-2, 2e-2, 4e-2)},
        published=[
            published(
                "nanoT5 README (1375b38): T5 v1.1 base, RMS-scaled AdamW, 2^16 steps",
                measure="loss",
                metric="held-out loss on C4",
                values={"cosine": 1.953, "inverse_sqrt": 2.040},
                better="lower",
            )
        ],
    )
