"""How much of a text should a prefix LM read, and how much should it predict? Raffel et al. (2020), Tay et al. (2022).

    python -m train.ablate --study=configs/studies/prefix_fraction.py --out=studies/prefix_fraction

`uniform_D`: the length of the prefix is uniform, so that D percent of the tokens are targets on average: 50 is T5's
prefix LM, 25 the S-denoiser of UL2's table 1. `fixed_D`: always the last D percent. `uniform_50_causal`: T5's prefix LM
with a causal prefix, which changes the attention alone. `clm`: no prefix, every token is a target.

  continuation          bits per byte of the second half of a held-out text, given the first half
  left_to_right         held-out loss under configs/clm.py: every token of a text without a prefix
  accuracy, macro_f1    after the same fine-tuning

Why this is fair: all variants have the same decoder of four T5 blocks, learning rate, rows and raw tokens, and are
scored on the same tokens of the same text. A run's own loss is not comparable, because tokens after a long prefix are
easier. `continuation` has the split of `fixed_50`; `left_to_right` has that of `clm`. What a larger share of targets
brings is more predictions from the same text, and the number of scored tokens is in metrics.jsonl. No published result:
the numbers of the papers that compare such splits could not be confirmed. Fine-tuning has the attention of training:
uniform_50_causal and clm read the text from the left, the others in both directions.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, raw_tokens, study, variant


def _split(kind: str, target_fraction: float) -> dict:
    return {"objective.split": kind, "objective.target_fraction": target_fraction}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/prefix_lm.py",
        baseline="uniform_50",
        variants={
            "uniform_50": variant(_split("uniform", 0.5)),
            "uniform_25": variant(_split("uniform", 0.25)),
            "uniform_10": variant(_split("uniform", 0.1)),
            "fixed_75": variant(_split("fixed", 0.75)),
            "fixed_50": variant(_split("fixed", 0.5)),
            "fixed_25": variant(_split("fixed", 0.25)),
            "uniform_50_causal": variant({"data.bidirectional_inputs": False}),
            "clm": variant(config="configs/clm.py"),
        },
        budget=raw_tokens(1_000_000),
        measures={
            **common.continuation(),
            "left_to_right": heldout_loss(config="configs/clm.py", overrides={"data.documents": "join"}),
            **common.classification(),
        },
        overrides=common.T5_BLOCKS
        | common.SHORT_RUNS
        | {"model.num_layers": 4, "loss.z_loss": 1e-4, "data.documents": "join", "data.inputs_length": 256},
    )
