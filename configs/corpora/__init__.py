"""Public corpora as configs: one file for each corpus, for the objectives that read plain text.

A preset names a config of configs/ and, after a comma, its preset: configs/corpora/c4.py:ul2,base is
configs/ul2.py:base on C4. The corpora are prepared TFDS datasets. The fields data.source, data.path and
data.heldout_path select another form of a corpus.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import (
    bart,
    block_diffusion,
    clm,
    clm_then_mlm,
    deshuffling,
    electra,
    fim,
    future_summary,
    glm,
    hybrid,
    iid_denoising,
    masked_diffusion,
    masked_inputs,
    mass,
    mlm,
    multi_token_prediction,
    next_latent,
    nsp,
    pegasus,
    prefix_lm,
    reverse,
    sigma_gpt,
    simcse,
    sop,
    span_corruption,
    ul2,
    ul2_baselines,
    ul2r,
    unilm,
)

# The configs that read plain text.
MODULES = (
    bart, block_diffusion, clm, clm_then_mlm, deshuffling, electra, fim, future_summary, glm, hybrid, iid_denoising,
    masked_diffusion, masked_inputs, mass, mlm, multi_token_prediction, next_latent, nsp, pegasus, prefix_lm, reverse,
    sigma_gpt, simcse, sop, span_corruption, ul2, ul2_baselines, ul2r, unilm,
)  # fmt: skip
EXPERIMENTS = {module.__name__.removeprefix("configs."): module for module in MODULES}


def on_corpus(preset: str, data: Mapping[str, Any]) -> ConfigDict:
    """Returns the experiment of a preset, "ul2" or "ul2,base", with the fields `data` of config.data.

    Raises ValueError for a config that is not in EXPERIMENTS, with the names that exist, and for a preset that this
    config does not have.
    """
    name, _, own_preset = preset.partition(",")
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown config {name!r}: use {', '.join(map(repr, EXPERIMENTS))}, as in 'ul2' or 'ul2,base'")
    config = EXPERIMENTS[name].get_config(own_preset or "tiny")
    config.data.update(data)
    return config
