"""Which optimizer is best for span corruption, each with its own learning rate?

    python -m train.ablate --study=configs/studies/optimizer.py --out=studies/optimizer

RMS-scaled AdamW (nanoT5), AdamW, Adafactor (Shazeer and Stern 2018) and Muon (Jordan 2024, with Moonlight's scale), all
with a cosine schedule. Each optimizer's learning rate is the best of four, tried with a seed that the comparison does
not use; the sweep is in the report. RMS-scaled AdamW and Adafactor multiply the rate by the RMS of each matrix, so
their rates are larger than those of AdamW and Muon.

  loss          the run's own held-out loss, comparable here because all variants have one objective
  infilling_8   bits per byte of one hidden span of 8 tokens
  throughput    raw tokens per second of training

Why this is fair: everything but the optimizer and the swept rate is equal: parameters, model FLOPs, raw tokens, order
of data. Model FLOPs do not count the optimizer's own work, of which Muon has the most; throughput does. A swept rate at
the end of its range means that a better one may lie outside.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, published, raw_tokens, study, throughput, variant

_SCALED_RATES = (5e-3, 1e-2, 2e-2, 4e-2)
_RATES = (5e-4, 1e-3, 2e-3, 4e-3)


def _optimizer(name: str, rates: tuple[float, ...]) -> dict:
    return variant({"optimizer.name": name}, sweep={"optimizer.learning_rate": rates})


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/span_corruption.py",
        baseline="rms_scaled_adamw",
        variants={
            "rms_scaled_adamw": _optimizer("rms_scaled_adamw", _SCALED_RATES),
            "adafactor": _optimizer("adafactor", _SCALED_RATES),
            "adamw": _optimizer("adamw", _RATES),
            "muon": _optimizer("muon", _RATES),
        },
        budget=raw_tokens(1_000_000),
        measures={"loss": heldout_loss(), **common.infilling(spans=(8,)), "throughput": throughput()},
        overrides=common.SHORT_RUNS,
        varies=("optimizer.learning_rate",),  # the rates that an optimizer tries are its own
        published=[
            published(
                "nanoT5 README (1375b38): T5 v1.1 base, cosine schedule, 2^16 steps",
                measure="loss",
                metric="held-out loss on C4",
                values={"rms_scaled_adamw": 1.953, "adafactor": 1.993},
                better="lower",
            ),
            published(
                "nanoT5 README (1375b38): AdamW without RMS scaling diverges",
                measure="loss",
                metric="held-out loss on C4",
                better_than=[("rms_scaled_adamw", "adamw")],
                better="lower",
            ),
        ],
    )
