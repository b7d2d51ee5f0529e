"""How much of a text should masked language modeling mask, and with BERT's 80/10/10 rule or not? Wettig et al. (2023).

    python -m train.ablate --study=configs/studies/masking_rate.py --out=studies/masking_rate

The masking rates are 10, 15, 30, 40 and 50%. `bert_*` has BERT's rule: of the selected tokens 80% are masked, 10% are
replaced by random tokens and 10% are kept. `masks_*` masks all of them.

  loss_at_15, loss_at_40    held-out loss with 15% and with 40% masked, masks alone, whatever the run's own rate
  infilling_3               bits per byte of spans of 3 hidden tokens, one mask for each
  accuracy, macro_f1        after the same fine-tuning

Why this is fair: all variants have the same model, learning rate, steps and raw tokens, and are scored on the same
masked tokens of the same text. A run's own loss would rank low rates first, because they leave more context. Two rates
of scoring show whether a rate is only best at its own rate. Held-out losses with masks alone favour `masks_*`, which
never saw anything else; fine-tuning, without masks, does not, so it decides about the rule. The published models have
the size of BERT-large.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, probe, published, raw_tokens, study, variant

RATES = (0.1, 0.15, 0.3, 0.4, 0.5)
_MASKS_ALONE = {"objective.mask_token_rate": 1.0, "objective.random_token_rate": 0.0}


def get_study():
    """Returns the study."""
    rules = {"bert": {}, "masks": _MASKS_ALONE}
    scored_at = {
        f"loss_at_{round(100 * rate)}": heldout_loss(
            config="configs/mlm.py", overrides=_MASKS_ALONE | {"objective.mask_rate": rate}
        )
        for rate in (0.15, 0.4)
    }
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/mlm.py",
        baseline="bert_15",
        variants={
            f"{rule}_{round(100 * rate)}": variant({"objective.mask_rate": rate} | fields)
            for rule, fields in rules.items()
            for rate in RATES
        },
        budget=raw_tokens(1_000_000),
        measures={
            **scored_at,
            **common.classification(),
            "infilling_3": probe("infilling", "spans.3.masked_bits_per_byte", text_only=True),
        },
        overrides=common.SHORT_RUNS,
        published=[
            published(
                "Wettig et al. (2023), BERT-large, princeton-nlp/DinkyTrain README",
                measure="accuracy",
                metric="MNLI",
                values={"masks_15": 84.2, "masks_40": 84.5, "bert_15": 83.7, "bert_40": 84.3},
            )
        ],
    )
