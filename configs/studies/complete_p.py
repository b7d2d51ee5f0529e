"""Does CompleteP have one best learning rate at two depths?

    python -m train.ablate --study=configs/studies/complete_p.py --out=studies/complete_p

Causal language models of width 64, of 2 and of 16 layers, with AdamW, each tried at six learning rates. CompleteP's
base is the smaller model, of which both parameterizations are the same: standard_2. Gradients are not clipped, because
the norms of the two parameterizations differ. Batches are small, for many updates: the best rate of few updates is the
one that learns fastest at first.

  loss    held-out loss of the next token

Dey et al. (2025, arXiv 2505.01618) compare depths of 2 to 128 at 300M tokens. The sweep has one seed for each rate.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, raw_tokens, study, variant

_WIDTH, _DEPTHS = 64, (2, 16)
_COMPLETE = {"model.parameterization": "complete_p", "model.base_d_model": _WIDTH, "model.base_num_layers": _DEPTHS[0]}


def get_study():
    """Returns the study."""
    shallow, deep = (common.layers(depth, _WIDTH, 2) for depth in _DEPTHS)
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline="standard_2",
        variants={
            "standard_2": variant(shallow),
            "standard_16": variant(deep),
            "complete_p_16": variant(deep | _COMPLETE),
        },
        budget=raw_tokens(300_000),
        measures={"loss": heldout_loss()},
        overrides=common.SHORT_RUNS
        | {
            "model.initializer": "t5",
            "optimizer.name": "adamw",
            "optimizer.warmup_steps": 60,
            "optimizer.clip_norm": 0.0,
            "train.batch_size": 2,
        },
        sweep={"optimizer.learning_rate": (1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3)},
        seeds=3,
    )
