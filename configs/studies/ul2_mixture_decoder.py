"""Which parts of UL2's mixture matter, and is it better than its parts? Tay et al. (2022), on a decoder.

    python -m train.ablate --study=configs/studies/ul2_mixture_decoder.py --out=studies/ul2_mixture_decoder

The variants, measures and notes of configs/studies/ul2_mixture.py, with one stack in place of two. A row of 256
positions holds inputs and targets, which in the other study have 128 positions each.
"""

from configs.studies import ul2_mixture


def get_study():
    """Returns the study."""
    return ul2_mixture.get_study("decoder_only", inputs_length=256, batch_size=8)
