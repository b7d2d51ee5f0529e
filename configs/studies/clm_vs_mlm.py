"""Which objective is best for continuing text, for filling it in, and for classification?

    python -m train.ablate --study=configs/studies/clm_vs_mlm.py --out=studies/clm_vs_mlm

CLM (Radford et al. 2018), MLM (Devlin et al. 2019), prefix LM and span corruption (Raffel et al. 2020) and UL2 (Tay et
al. 2022) train the same single stack of four Llama blocks, with equal parameters, optimizer and learning rate, on the
same text, and read the same number of raw tokens. MLM has an encoder's layout; the others have a decoder's.

  accuracy, macro_f1    of all runs, after the same fine-tuning
  continuation          of all but MLM, which cannot continue text: bits per byte of the same held-out bytes
  exact_infilling_3     of the objectives that see both sides: the share of hidden spans of 3 tokens written exactly

Why this is fair: each measure scores the same held-out text of every run, in the layout that the run was trained for.
Where it is not fair: rows of 256 positions hold 256 raw tokens of CLM but fewer of span corruption and UL2, because
inputs and targets share them, so these spend more FLOPs on the same text (the report's curves by FLOPs). In infilling
MLM sees the number of hidden tokens, one mask for each, and the others do not, which favours MLM. In a mixture the
continuation probe uses the denoiser that continues text, with its mode token; span corruption predicts a continuation
of 48 tokens, which is longer than its usual spans. Fine-tuning has the attention of training: clm reads the text from
the left, and the others in both directions.
"""

from configs.studies import common
from configs.studies.base import published, raw_tokens, study, variant

_DECODER = {"model.architecture": "decoder_only"}
# The optimizer of the other four. With it, MLM on these blocks has a held-out loss of 1.95 after 480 steps, and of
# 2.26 with AdamW at 2e-3.
_OPTIMIZER = {"optimizer.name": "rms_scaled_adamw", "optimizer.learning_rate": 2e-2}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/clm.py",
        baseline="span_corruption",
        variants={
            "clm": variant(),
            "mlm": variant(_OPTIMIZER, config="configs/mlm.py"),
            "prefix_lm": variant(_DECODER, config="configs/prefix_lm.py"),
            "span_corruption": variant(_DECODER, config="configs/span_corruption.py"),
            "ul2": variant(_DECODER, config="configs/ul2.py"),
        },
        budget=raw_tokens(1_000_000),
        varies=("model.architecture",),  # MLM predicts in place, the others with a decoder
        measures={
            **common.classification(),
            **common.continuation(only=("span_corruption", "clm", "prefix_lm", "ul2")),
            **common.exact_infilling(only=("span_corruption", "mlm", "ul2")),
        },
        overrides=common.LLAMA_BLOCKS
        | common.SHORT_RUNS
        | {
            "model.num_layers": 4,
            "loss.z_loss": 0.0,
            "data.documents": "join",
            "data.inputs_length": 256,
            "train.batch_size": 8,
        },
        published=[
            published(
                "Gisserot-Boukhlef et al. (arXiv 2507.00994), abstract: 210M to 1B parameters; and Ettin (arXiv "
                "2507.11412), abstract: a 400M encoder against a 1B decoder",
                measure="accuracy",
                metric="fine-tuned tasks at the end of training, and MNLI",
                better_than=[("mlm", "clm")],
            ),
            *common.published_t5gemma("prefix_lm"),
        ],
    )
