"""Checks that the vocabulary has the special tokens of an objective."""

from collections.abc import Sequence

import numpy as np

from contract.errors import ConfigError
from contract.vocab import GENERAL_NAMES, Vocab, sentinel_name
from experiment.config import DataConfig
from objectives import Denoiser
from objectives.rows.lengths import Architecture


def check_special_tokens(
    denoisers: Sequence[Denoiser], architecture: Architecture, vocab: Vocab, data: DataConfig
) -> None:
    """Raises ConfigError where `vocab` lacks a special token of a denoiser: data.append_special_tokens is False."""
    if data.append_special_tokens:
        return
    for denoiser in denoisers:
        roles = denoiser.objective.special_tokens(architecture)
        missing = [GENERAL_NAMES[role] for role in roles if getattr(vocab, role) < 0]
        if denoiser.mode and denoiser.mode not in dict(vocab.modes) and denoiser.mode in data.mode_tokens:
            missing.append(denoiser.mode)
        if not vocab.num_sentinels and denoiser.objective.num_sentinels(np.array([1, 2, 3])).any():
            missing.append(sentinel_name(0))
        if missing:
            raise ConfigError(
                f"{denoiser.field} ({type(denoiser.objective).__name__}) needs the special token {missing[0]}, which "
                f"data.tokenizer={data.tokenizer!r} lacks: set data.append_special_tokens=True"
            )
