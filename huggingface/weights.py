"""Writes tensors as safetensors files, in several files with an index where one would be too large."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np

from contract.errors import ConfigError

WeightsDtype = Literal["float32", "bfloat16", "float16"]
MAX_FILE_BYTES = 5 * 10**9  # as save_pretrained of transformers 4; a larger tensor has a file of its own

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def write_weights(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    dtype: WeightsDtype,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> int:
    """Writes `tensors`, float32 by name, to `folder` as `dtype`, rounded to the nearest, and returns their bytes.

    One file is model.safetensors. Several are model-00001-of-00002.safetensors and so on, with the file of each tensor
    in model.safetensors.index.json, as `transformers` reads them. A file holds at most `max_file_bytes` of tensors, or
    one larger tensor.

    Raises ConfigError for a finite value that is infinite in `dtype`, and without safetensors; OSError for a file that
    cannot be written.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError:
        raise ConfigError("train.export needs safetensors: pip install -e '.[huggingface]'") from None
    files = _split(tensors, np.dtype(_DTYPES[dtype]).itemsize, max_file_bytes)
    weight_map, total = {}, 0
    for number, names in enumerate(files, start=1):
        many = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        file_name = "model.safetensors" if len(files) == 1 else many
        converted = {name: _convert(name, tensors[name], dtype) for name in names}
        try:
            save_file(converted, folder / file_name, metadata={"format": "pt"})  # transformers refuses files without it
        except SafetensorError as error:
            raise _os_error(error, folder / file_name) from error
        weight_map |= dict.fromkeys(names, file_name)
        total += sum(tensor.nbytes for tensor in converted.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _os_error(error: Exception, path: Path) -> Exception:
    """Returns the OSError that safetensors, which is written in Rust, reports as `error`; otherwise `error`."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error


def _convert(name: str, tensor: np.ndarray, dtype: WeightsDtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(tensor.astype(_DTYPES[dtype]))
    if not np.isfinite(converted).all() and np.isfinite(tensor).all():
        raise ConfigError(
            f"--dtype={dtype} cannot hold {name}, whose largest value is {np.abs(tensor).max():g}: use "
            "--dtype=bfloat16 or float32"
        )
    return converted


def _split(tensors: Mapping[str, np.ndarray], itemsize: int, max_file_bytes: int) -> list[list[str]]:
    """Returns the names of the tensors of each file, in order."""
    files: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.size * itemsize
        if files[-1] and used + size > max_file_bytes:
            files.append([])
            used = 0
        files[-1].append(name)
        used += size
    return files
