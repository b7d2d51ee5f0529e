"""How does the held-out loss of CLM fall with parameters and with tokens? Hoffmann et al. (2022), approach 3.

One budget is one folder, and python -m train.scaling reads all of them (docs/scaling.md):

    for tokens in 5e5 1e6 2e6 4e6; do
      python -m train.ablate --study=configs/studies/scaling.py --out=studies/scaling_$tokens --budget=$tokens
    done
    python -m train.scaling --study=configs/studies/scaling.py --out='studies/scaling_*'

All sizes have one learning rate, which RMS-scaled AdamW multiplies by the RMS of each matrix; it is not tuned for each
size.
"""

from configs.studies import common
from configs.studies.base import heldout_loss, raw_tokens, study, variant

# Blocks of Llama's kind with heads of 16 or 32 and a feed-forward width of twice d_model.
SIZES = {  # variant: num_layers, d_model, num_heads
    "layers_2_width_32": (2, 32, 2),
    "layers_2_width_64": (2, 64, 4),
    "layers_3_width_96": (3, 96, 3),
    "layers_4_width_128": (4, 128, 4),  # configs/clm.py:tiny
    "layers_6_width_192": (6, 192, 6),
}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline="layers_4_width_128",
        variants={name: variant(common.layers(*shape)) for name, shape in SIZES.items()},
        budget=raw_tokens(1_000_000),
        measures={"loss": heldout_loss()},
        seeds=3,  # a fit has the runs of all sizes: another size or budget says more than two more seeds
    )
