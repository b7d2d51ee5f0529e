"""Block diffusion (Arriola et al. 2025, BD3-LM) on a decoder: blocks from left to right, masked diffusion within each.

    python -m train.main --config=configs/block_diffusion.py
    python -m train.main --config=configs/block_diffusion.py:next --config.train.init_from=runs/clm
    python -m train.main --config=configs/block_diffusion.py --config.model.architecture=encoder_only

A row has two copies of a text, so data.inputs_length is twice that of configs/clm.py: with as many rows, a step reads
as many tokens of text as CLM's, at about twice the cost. `bits_per_byte` of the evaluation is the bound on the bits of
the text. It compares with that of configs/clm.py, whose windows are equal, and with that of configs/masked_diffusion.py
where that has them too: with --same_model=configs/clm.py --config.data.documents=pack.

The objective is the paper's; model and recipe are those of configs/clm.py. At sizes small and base these are GPT-2's
shape with its dropout and learned positions, and Llama's optimizer, without an average of the parameters. Nearer to
BD3-LM's code are --config.model.positions=rope --config.optimizer.schedule=constant --config.optimizer.b2=0.999
--config.optimizer.weight_decay=0.0 --config.train.ema_decay=0.9999.

Sizes: small and base of configs/clm.py; the larger ones do not fit its machines with rows of two copies. Variants, by
the tokens of a block: block_4 (default), block_1, block_16; next predicts a token where the token before it is read, as
CLM does, in blocks of 4.

The paper's clipped schedules, which hide 30% to 80% of a block, say, are
--config.objective.min_mask_share=0.3 --config.objective.max_mask_share=0.8 (objectives/block_diffusion.py).
"""

from ml_collections import ConfigDict

from configs import base, clm

_BLOCKS = dict(name="block_diffusion", block_length=4, alignment="same", min_mask_share=0.0, max_mask_share=1.0)
VARIANTS = {
    "block_4": _BLOCKS,
    "block_1": _BLOCKS | dict(block_length=1),
    "block_16": _BLOCKS | dict(block_length=16),
    "next": _BLOCKS | dict(alignment="next"),
}


SIZES = {name: clm.SIZES[name] for name in ("small", "base")}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    config = clm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.inputs_length *= 2
    return config
