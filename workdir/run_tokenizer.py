"""The tokenizer of a run: a copy in the run's folder, which every reader of the run uses."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.tokenizers.base import Tokenizer
from files.atomic import write_bytes
from files.paths import is_file, make_folder, read_bytes

FOLDER = "tokenizer"  # in the workdir; no folder for a tokenizer without files, such as bytes


def write_tokenizer(workdir: str | os.PathLike, tokenizer: Tokenizer) -> None:
    """Writes the files of `tokenizer` to workdir/tokenizer. Raises ConfigError if they cannot be written."""
    folder = os.path.join(workdir, FOLDER)
    try:
        for name, contents in tokenizer.files.items():  # the model last: a reader takes a copy that has the model
            make_folder(folder)
            path = os.path.join(folder, name)
            if not is_file(path) or read_bytes(path) != contents:
                write_bytes(path, contents)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be written: {error.strerror}: {error.filename}") from error


def with_own_tokenizer(config: Mapping[str, Any], workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns a run's `config`, as nested dicts, with the path of its own copy of the tokenizer in data.tokenizer.

    A run without a copy, such as one of an earlier version, keeps the path.
    """
    data = config.get("data")
    if not isinstance(data, Mapping) or not isinstance(path := data.get("tokenizer"), str):
        return dict(config)  # make_experiment names what is wrong
    name = os.path.basename(path) if path.endswith((".model", ".json")) else "tokenizer.json"
    copy = os.path.join(workdir, FOLDER, name)
    return {**config, "data": {**data, "tokenizer": copy if is_file(copy) else path}}


def describe_other_tokenizer(
    config: Mapping[str, Any], workdir: str | os.PathLike, tokenizer: Tokenizer, path: str
) -> str:
    """Returns a line if `tokenizer`, read from `path`, encodes texts otherwise than that of the run did; else "".

    config: the run's, with its section "corpus". Returns "" too if it lacks the tokenizer's fingerprint.
    """
    expected = (config.get("corpus") or {}).get("tokenizer", tokenizer.fingerprint)
    if tokenizer.fingerprint == expected:
        return ""
    remedy = "restore that file" if Path(path).is_relative_to(workdir) else "put the run's tokenizer there"
    return (
        f"{workdir}: data.tokenizer={path!r} is another tokenizer ({tokenizer.fingerprint}) than that of the "
        f"run ({expected}): {remedy}"
    )


def bytes_of_tokens(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """Returns the UTF-8 bytes that each token spells, int32 [size]. size: at least the tokenizer's number of ids."""
    counts = np.zeros(size, np.int32)
    for token in range(tokenizer.vocab.size):
        counts[token] = tokenizer.num_bytes(np.asarray([token]))
    return counts
