"""Which parts of UL2's mixture matter, and is it better than its parts? Tay et al. (2022), on an encoder-decoder.

    python -m train.ablate --study=configs/studies/ul2_mixture.py --out=studies/ul2_mixture
    python -m train.ablate --study=configs/studies/ul2_mixture_decoder.py --out=studies/ul2_mixture_decoder

The second study has the same variants on a decoder; it is a study of its own, so that each variant is compared with a
baseline of its own architecture.

  ul2         the seven denoisers, in equal shares
  no_modes    without the mode tokens
  no_x        without the four X denoisers
  no_s        without the S denoiser
  clm, plm, sc    causal LM, prefix LM, span corruption alone
  sclm        span corruption and causal LM
  unilm       causal LM, prefix LM and denoising of single tokens (configs/ul2_baselines.py)

Measures:
  accuracy, macro_f1        of all, after the same fine-tuning
  continuation              of all: bits per byte of the second half of a text. Where a mixture has a denoiser that
                            continues text, its layout and mode token are used, and otherwise a span at the end
  infilling_3, _8, _32      of the variants that see both sides: bits per byte of one hidden span

Why this is fair: all variants have the same model, vocabulary, learning rate, rows and raw tokens, and are scored on
the same hidden bytes. A run's own loss is over its own denoisers and cannot be compared. Where it is not fair: windows
differ in length, and so do the numbers of updates and FLOPs for the same text. A difference may come from the number of
updates. The numbers of the paper's tables could not be confirmed, nor could the shares of its SC + LM and UniLM
mixtures.
"""

from configs.studies import common
from configs.studies.base import published, raw_tokens, study, variant

_SCLM, _UNILM = "configs/ul2_baselines.py:sclm", "configs/ul2_baselines.py:unilm"
_DENOISERS = ("r1", "r2", "s", "x1", "x2", "x3", "x4")
_UPDATES = {
    "encoder_decoder": "clm, plm and unilm make about 36% more updates than ul2, and no_s 4% fewer. The encoder of clm "
    "reads nothing in training, so its fine-tuned accuracy says little about CLM, and the published order of ul2 and "
    "clm is compared in ul2_mixture_decoder alone.",
    "decoder_only": "clm makes 8% fewer updates than ul2, and sc 2% more. Fine-tuning has the attention of training: "
    "clm reads the text from the left, the others in both directions.",
}


def _without(*names: str) -> dict:
    return {f"objective.denoisers.{name}.weight": 0.0 for name in names}


def get_study(architecture: str = "encoder_decoder", inputs_length: int = 128, batch_size: int = 16):
    """Returns the study for one architecture.

    inputs_length: of an encoder's row, or of a decoder's, which has to hold inputs and targets.
    """
    is_decoder = architecture == "decoder_only"
    description = common.described(__doc__, _UPDATES[architecture], common.CLASSIFICATION_NOTE)
    description["question"] += f" ({architecture})"
    return study(
        **description,
        config="configs/ul2.py",
        baseline="ul2",
        variants={
            "ul2": variant(),
            "no_modes": variant({f"objective.denoisers.{name}.mode": "" for name in _DENOISERS}),
            "no_x": variant(_without("x1", "x2", "x3", "x4")),
            "no_s": variant(_without("s")),
            "clm": variant(_without("sc"), config=_SCLM),
            "plm": variant(_without("clm", "iid"), config=_UNILM),
            "sc": variant(_without("clm"), config=_SCLM),
            "sclm": variant(config=_SCLM),
            "unilm": variant(config=_UNILM),
        },
        budget=raw_tokens(800_000),
        measures={
            **common.classification(),
            **common.continuation(),
            **common.infilling(only=("ul2", "no_modes", "no_x", "no_s", "sc", "sclm", "unilm")),
        },
        overrides=common.SHORT_RUNS
        | {"model.architecture": architecture, "data.inputs_length": inputs_length, "train.batch_size": batch_size},
        published=[
            published(
                "Tay et al. (2022), abstract: UL2 outperforms T5-like and GPT-like models across several setups",
                measure="accuracy",
                metric="fine-tuned and one-shot tasks",
                better_than=[("ul2", "sc"), *([("ul2", "clm")] if is_decoder else [])],
            ),
            *common.published_t5gemma("plm"),
        ],
    )
