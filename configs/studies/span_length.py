"""How long should corrupted spans be, and how much of a text should they cover? Raffel et al. (2020), tables 6 and 7.

    python -m train.ablate --study=configs/studies/span_length.py --out=studies/span_length

`span_2`, ..., `span_10`: span corruption of 15% of the tokens in spans of that mean length (table 7). `iid_10`, ...,
`iid_50`: that percentage of tokens, drawn one by one; a run of them is one span (table 6). The baseline of both tables
is `iid_15`.

  accuracy, macro_f1        after the same fine-tuning: the counterpart of T5's fine-tuned GLUE and SuperGLUE scores
  infilling_3, _8, _32      bits per byte of one hidden span of 3, 8 and 32 tokens, with both sides visible
  continuation              bits per byte of the second half of a text, hidden as one span at its end

Why this is fair: all variants have the same encoder-decoder, learning rate and raw tokens, and are scored on the same
hidden bytes. A run's own loss is not comparable: longer spans are harder. As in T5, all encoder rows have the same
length, so longer spans, which need fewer sentinels, have longer windows and fewer updates for the same text: span_2 has
8% and span_10 14% fewer than the baseline. Differences between spans contain this effect. Decoder rows are as long as
the targets need, so FLOPs grow with the density, from 3.3e12 (span_10) to 7.5e12 (iid_50). The paper's numbers are
fine-tuned scores of T5 base after 34 billion tokens.
"""

from configs.studies import common
from configs.studies.base import raw_tokens, study, variant

SPANS = (2, 3, 5, 10)
PERCENTAGES = (10, 15, 25, 50)

# GLUE and SuperGLUE.
_TABLE_6 = {"iid_15": (83.28, 71.36), "iid_10": (82.82, 69.55), "iid_25": (83.00, 70.48), "iid_50": (81.27, 70.33)}
_TABLE_7 = {
    "iid_15": (83.28, 71.36),
    "span_2": (83.54, 72.20),
    "span_3": (83.49, 72.53),
    "span_5": (83.40, 72.23),
    "span_10": (82.85, 70.44),
}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/span_corruption.py",
        baseline="iid_15",
        variants={
            **{f"span_{span}": variant(config=f"configs/span_corruption.py:span_{span}_15_u_u") for span in SPANS},
            **{f"iid_{share}": variant(config=f"configs/iid_denoising.py:iid_{share}_u_u") for share in PERCENTAGES},
        },
        budget=raw_tokens(1_000_000),
        measures={**common.classification(), **common.infilling(), **common.continuation()},
        # 128 sentinels: what 50% of 256 tokens, one by one, can need.
        overrides=common.SHORT_RUNS | {"data.num_sentinels": 128},
        published=[*common.published_scores("table 6", _TABLE_6), *common.published_scores("table 7", _TABLE_7)],
        varies=("data.targets_length",),  # as long as each variant's targets
    )
