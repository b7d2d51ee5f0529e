"""Does predicting several tokens ahead help? Gloeckle et al. (2024), DeepSeek-V3 (2024).

    python -m train.ablate --study=configs/studies/mtp.py --out=studies/mtp

  clm                four layers
  heads_2            three layers, the last of which is the head of the next token, and one layer that predicts the
                     token after it: as many parameters as clm
  heads_2_extra, heads_4_extra    four layers, and one or three more for the tokens after the next one
  module             DeepSeek-V3's: four layers and one module for the token after the next one

  left_to_right         held-out loss of the next token, under configs/clm.py: without the further heads
  continuation          bits per byte of the second half of a text, without the further heads
  accuracy, macro_f1    after the same fine-tuning of the model without the further heads

Why this is fair: all variants have the same width, learning rate and raw tokens, and only the prediction of the next
token is scored. heads_2 and clm have equal parameters and nearly equal FLOPs in training, as in Gloeckle et al., but
heads_2 has one layer fewer at inference. The other variants have clm's model at inference, and more parameters and
FLOPs in training. Published gains are of models of billions of parameters; at about 300 million there is little or
none, so none is expected here. No published number is compared.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, raw_tokens, study, variant

_MTP = "configs/multi_token_prediction.py"


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/clm.py",
        baseline="clm",
        variants={
            "clm": variant(),
            "heads_2": variant({"objective.num_future_tokens": 2, "model.num_layers": 3}, config=_MTP),
            "heads_2_extra": variant({"objective.num_future_tokens": 2}, config=_MTP),
            "heads_4_extra": variant(config=_MTP),
            "module": variant(config=f"{_MTP}:sequential"),
        },
        budget=raw_tokens(1_000_000),
        measures={
            "left_to_right": heldout_loss(config="configs/clm.py"),
            **common.continuation(),
            **common.classification(),
        },
        overrides=common.SHORT_RUNS,
    )
