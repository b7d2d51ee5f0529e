"""Sizes between a laptop's and the published ones, by one name in every config: --config=configs/clm.py:m

Each is the config's tiny preset, blocks and optimizer included, with another shape, learning rate and batch:

| size | layers, width, heads, feed-forward | rate | rows | clm.py | mlm.py | span_corruption.py |
|---|---|---|---|---|---|---|
| xs | 2, 64, 4, 128 | x 1 | x 1 | 0.13M | 0.10M | 0.15M |
| s = tiny | 4, 128, 4, 256 | x 1 | x 1 | 0.75M | 0.60M | 0.89M |
| m | 6, 256, 8, 512 | x 0.7 | x 4 | 4.13M | 3.33M | 4.92M |
| l | 8, 512, 8, 1024 | x 0.5 | x 16 | 21.37M | 17.28M | 25.57M |
| base | a published shape and recipe | | | 124M | 110M | 248M |

Rates and rows are relative to those of tiny, which is 2e-2 with rms_scaled_adamw and 2e-3 with adamw, and 8 or 16 rows;
in classification.py 5e-4, in simcse.py 32 rows, and in sft.py and teacherless.py, whose rows are longer, 4.
The rate falls with the root of the width: at l it is half of tiny's, which is about T5's 0.01 where it is relative to
the parameters. These rates are a rule and were not swept; a study's sweep finds better ones. train.steps is that of
tiny, which is short for m and l. Parameters are those with bytes as tokens; another vocabulary adds its table. An
encoder-decoder has half of the layers in each stack.
"""

import math
from typing import NamedTuple

from ml_collections import ConfigDict


class Size(NamedTuple):
    """A shape, and factors of tiny's layers, learning rate and rows of a batch."""

    d_model: int
    num_heads: int
    layers: float
    rate: float
    rows: int


_TINY = Size(d_model=128, num_heads=4, layers=1, rate=1, rows=1)
DIAL = {
    "tiny": _TINY,
    "xs": Size(d_model=64, num_heads=4, layers=0.5, rate=1, rows=1),
    "s": _TINY,
    "m": Size(d_model=256, num_heads=8, layers=1.5, rate=0.7, rows=4),
    "l": Size(d_model=512, num_heads=8, layers=2, rate=0.5, rows=16),
}


def use_dial(config: ConfigDict, name: str) -> None:
    """Changes a tiny experiment to a size of DIAL: its shape, optimizer.learning_rate and train.batch_size."""
    size = DIAL[name]
    config.model.update(d_model=size.d_model, num_heads=size.num_heads, num_kv_heads=size.num_heads)
    config.model.update(head_dim=size.d_model // size.num_heads, d_ff=2 * size.d_model)
    for field in ("num_layers", "num_decoder_layers"):
        config.model[field] = math.ceil(size.layers * config.model[field])
    config.optimizer.learning_rate *= size.rate
    config.train.batch_size *= size.rows
