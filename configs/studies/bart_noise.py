"""Which of BART's noises is best, and is their combination better? Lewis et al. (2020), section 4.

    python -m train.ablate --study=configs/studies/bart_noise.py --out=studies/bart_noise

  token_masking, token_deletion, text_infilling, sentence_permutation, document_rotation    each noise alone
  bart    text infilling of sentences in random order, as BART was trained

  accuracy, macro_f1    after the same fine-tuning
  infilling_3, _8       of the noises that hide tokens: bits per byte of one hidden span, in the noise's own form
  continuation          of the same: bits per byte of the second half of a text

Why this is fair: all variants have the same encoder-decoder, learning rate, rows and raw tokens, and all of them write
the whole text, so they predict the same number of tokens. The probes score the same hidden bytes. A run's own loss is
not comparable: most targets are visible, and how many depends on the noise.
"""

from configs.studies.base import raw_tokens, study, variant
from configs.studies.common import CLASSIFICATION_NOTE, SHORT_RUNS, classification, continuation, infilling

_NOISES = (
    "text_infilling",
    "bart",
    "token_masking",
    "token_deletion",
    "sentence_permutation",
    "document_rotation",
)


def get_study():
    """Returns the study."""
    return study(
        question="Which of BART's noises is best, and is their combination better?",
        config="configs/bart.py",
        baseline="text_infilling",
        variants={noise: variant(config=f"configs/bart.py:{noise}") for noise in _NOISES},
        budget=raw_tokens(1_000_000),
        measures={**classification(), **infilling(only=_NOISES[:4], spans=(3, 8)), **continuation(only=_NOISES[:4])},
        # Rotary positions: a table of learned positions could not be fine-tuned on longer rows.
        overrides=SHORT_RUNS | {"model.positions": "rope"},
        notes="Equal parameters, rows, FLOPs of a step and raw tokens. The numbers of the paper's table 1 could not be "
        "confirmed. " + CLASSIFICATION_NOTE,
    )
