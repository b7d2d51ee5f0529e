"""Does the masking rate of MLM matter, and does BERT's 80/10/10 rule? Wettig et al. (2023).

python -m train.ablate --study=configs/studies/masking_rate.py --out=studies/masking_rate
"""

from configs.studies.base import fine_tuning, heldout_loss, published, raw_tokens, study, variant

RATES = (0.1, 0.15, 0.3, 0.4, 0.5)
_MASKS_ALONE = {"objective.mask_token_rate": 1.0, "objective.random_token_rate": 0.0}


def get_study():
    """Returns the study."""
    rules = {"bert": {}, "masks": _MASKS_ALONE}
    return study(
        question="How much of a text should masked language modeling mask, and with BERT's 80/10/10 rule or not?",
        config="configs/mlm.py",
        baseline="bert_15",
        variants={
            f"{rule}_{round(100 * rate)}": variant({"objective.mask_rate": rate} | fields)
            for rule, fields in rules.items()
            for rate in RATES
        },
        budget=raw_tokens(1_000_000),
        measures={
            # Every variant is scored at 15%, with masks alone.
            "loss_at_15": heldout_loss(config="configs/mlm.py", overrides=_MASKS_ALONE),
            "accuracy": fine_tuning("accuracy"),
        },
        published=[
            published(
                "Wettig et al. (2023), BERT-large, princeton-nlp/DinkyTrain README",
                measure="accuracy",
                metric="MNLI",
                values={"masks_15": 84.2, "masks_40": 84.5, "bert_15": 83.7, "bert_40": 84.3},
            ),
        ],
        notes="All variants are scored on the same held-out text with 15% of the tokens masked.",
    )
