"""Which of BART's noises is best, and is their combination better? Lewis et al. (2020), section 4.

    python -m train.ablate --study=configs/studies/bart_noise.py --out=studies/bart_noise

  token_masking, token_deletion, text_infilling, sentence_permutation, document_rotation    each noise alone
  bart    text infilling of sentences in random order, as BART was trained

  accuracy, macro_f1    after the same fine-tuning
  infilling_3, _8       of the noises that hide tokens: bits per byte of one hidden span, in the noise's own form
  continuation          of the same: bits per byte of the second half of a text

Why this is fair: all variants have the same encoder-decoder, learning rate, rows and raw tokens, and all of them write
the whole text, so they predict the same number of tokens and have equal FLOPs. The probes score the same hidden bytes.
A run's own loss is not comparable: most targets are visible, and how many depends on the noise. The numbers of the
paper's table 1 could not be confirmed.
"""

from configs.studies import common
from configs.studies.base import raw_tokens, study, variant

_HIDING = ("text_infilling", "bart", "token_masking", "token_deletion")
_NOISES = (*_HIDING, "sentence_permutation", "document_rotation")


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/bart.py",
        baseline="text_infilling",
        variants={noise: variant(config=f"configs/bart.py:{noise}") for noise in _NOISES},
        budget=raw_tokens(1_000_000),
        measures={
            **common.classification(),
            **common.infilling(only=_HIDING, spans=(3, 8)),
            **common.continuation(only=_HIDING),
        },
        # Rotary positions: a table of learned positions could not be fine-tuned on longer rows.
        overrides=common.SHORT_RUNS | {"model.positions": "rope"},
    )
