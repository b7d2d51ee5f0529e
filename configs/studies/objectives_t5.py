"""Which of T5's unsupervised objectives is best? Raffel et al. (2020), tables 4 and 5.

    python -m train.ablate --study=configs/studies/objectives_t5.py --out=studies/objectives_t5

Table 4: prefix LM, BERT-style denoising (a tenth of the sentinels is a random token) and deshuffling. Table 5:
MASS-style denoising (no random token), replaced spans (T5's baseline), and dropped tokens. All train one
encoder-decoder.

  accuracy, macro_f1    after the same fine-tuning: the counterpart of T5's fine-tuned GLUE and SuperGLUE scores
  infilling_3, _8       of the denoising objectives: bits per byte of one hidden span, both sides visible
  continuation          of all but deshuffling, which hides nothing

Why this is fair: all variants have the same model, learning rate, encoder rows, windows without regard to the ends of
documents, and raw tokens, and the probes score the same hidden bytes. A run's own loss is not comparable: the targets
of half of the variants repeat visible tokens. FLOPs differ, because the targets do: T5's reason to prefer short ones.
The paper's numbers are fine-tuned scores of T5 base after 34 billion tokens. Deviation from T5: deshuffled windows may
cross the ends of documents.
"""

from configs.studies import common
from configs.studies.base import raw_tokens, study, variant

_GLUE_AND_SUPERGLUE = {
    "replace_spans": (83.28, 71.36),
    "prefix_lm": (80.69, 65.27),
    "bert_style": (82.96, 69.85),
    "deshuffling": (73.17, 58.47),
    "mass_style": (82.32, 69.28),
    "drop_tokens": (84.44, 68.67),
}
_DENOISING = ("replace_spans", "bert_style", "mass_style", "drop_tokens")


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/iid_denoising.py",
        baseline="replace_spans",
        variants={
            "replace_spans": variant(config="configs/iid_denoising.py:iid_15_u_u"),
            "prefix_lm": variant(
                {"model.architecture": "encoder_decoder", "model.num_layers": 2}, config="configs/prefix_lm.py"
            ),
            "bert_style": variant(config="configs/iid_denoising.py:iid_15_r10s90_f"),
            "deshuffling": variant({"data.targets_length": 256}, config="configs/deshuffling.py"),
            "mass_style": variant(config="configs/iid_denoising.py:iid_15_m_f"),
            "drop_tokens": variant(config="configs/iid_denoising.py:iid_15_d_d"),
        },
        budget=raw_tokens(1_000_000),
        varies=("data.targets_length",),  # an objective's rows are as long as its targets need
        measures={
            **common.classification(),
            **common.infilling(only=_DENOISING, spans=(3, 8)),
            **common.continuation(only=(*_DENOISING, "prefix_lm")),
        },
        overrides=common.SHORT_RUNS | {"data.documents": "join", "data.inputs_length": 256, "train.batch_size": 8},
        published=common.published_scores("tables 4 and 5", _GLUE_AND_SUPERGLUE),
    )
