"""Reads and writes Hugging Face folders: config.json and safetensors files. Pickled files are never opened."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from contract.errors import ConfigError
from files.atomic import parse_json
from files.paths import check_local, read_text

WeightsDtype = Literal["float32", "bfloat16", "float16"]

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Files of weights that Python's pickle reads, or another framework.
_OTHER_WEIGHTS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.pickle", "*.pkl", "*.ckpt", "*.h5", "*.msgpack")


@dataclasses.dataclass(frozen=True, eq=False)
class HuggingFaceFolder:
    """A folder that `transformers`' from_pretrained reads, with its weights as safetensors. Made by `open_folder`.

    Attributes:
      path: the folder.
      where: the flag or config field that names the folder, for messages, such as "--from=DIR".
      config: the contents of config.json.
      tensors: the weights by name, read from disk each time that one is looked up. float16 and bfloat16 become float32.
    """

    path: Path
    where: str
    config: dict[str, Any]
    tensors: "Tensors"


class Tensors(Mapping[str, np.ndarray]):
    """Tensors of safetensors files by name. A tensor is read when it is looked up, and not kept."""

    def __init__(self, where: str, files: Mapping[str, Path]):
        self._where, self._files = where, files

    def __getitem__(self, name: str) -> np.ndarray:
        path = self._files[name]
        with _opened(path, self._where) as file:
            dtype = file.get_slice(name).get_dtype()
            if dtype not in ("F64", "F32", "F16", "BF16"):
                raise ConfigError(
                    f"{self._where}: tensor {name} of {path.name} has the type {dtype}, and weights are read as F64, "
                    "F32, F16 or BF16: write the folder again in float32, float16 or bfloat16"
                )
            tensor = file.get_tensor(name)
        is_half = tensor.dtype == np.float16 or tensor.dtype.name == "bfloat16"
        return tensor.astype(np.float32) if is_half else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def is_huggingface_folder(path: str | os.PathLike) -> bool:
    """Returns whether `path` is a folder of Hugging Face's kind, and not the folder of a run.

    The config.json of a run has the sections of configs/base.py.
    """
    try:
        config = parse_json(read_text(os.path.join(os.path.expanduser(path), "config.json")))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and not {"data", "model", "train"} <= config.keys()


def open_folder(path: str | os.PathLike, where: str) -> HuggingFaceFolder:
    """Returns the Hugging Face folder `path`, with the header of every file of weights read.

    where: the flag or config field that names the folder, for messages.

    Raises ConfigError, one line: no folder, no config.json, weights that are not safetensors, files of weights that are
    missing, truncated or not safetensors.
    """
    check_local(os.fspath(path), where)
    folder = Path(os.path.expanduser(path))
    if not folder.is_dir():
        raise ConfigError(f"{where} is not a folder: name a folder that transformers' save_pretrained wrote")
    config = _read_object(folder / "config.json", where)
    files: dict[str, Path] = {}
    for file_name in _weight_files(folder, where):
        if not (folder / file_name).exists():
            raise ConfigError(f"{where} has no {file_name}, which {_INDEX} names: copy that file too")
        with _opened(folder / file_name, where) as file:
            files |= dict.fromkeys(file.keys(), folder / file_name)
    return HuggingFaceFolder(folder, where, config, Tensors(where, files))


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray], dtype: WeightsDtype) -> None:
    """Writes `tensors`, float32 by name, to model.safetensors in `folder` as `dtype`, rounded to the nearest.

    Raises ConfigError for a finite value that is infinite in `dtype`, and without safetensors; OSError for a file that
    cannot be written.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError:
        raise _no_safetensors_library() from None
    path, converted = folder / _WEIGHTS, {name: _convert(name, tensor, dtype) for name, tensor in tensors.items()}
    try:
        path.touch()
        mode = path.stat().st_mode  # of a new file; safetensors replaces it by one that its owner alone can read
        save_file(converted, path, metadata={"format": "pt"})  # transformers refuses files without it
        path.chmod(mode)
    except SafetensorError as error:  # such as a full disk
        raise OSError(str(error)) from error


def _convert(name: str, tensor: np.ndarray, dtype: WeightsDtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(tensor.astype(_DTYPES[dtype]))
    if not np.isfinite(converted).all() and np.isfinite(tensor).all():
        raise ConfigError(
            f"--dtype={dtype} cannot hold {name}, whose largest value is {np.abs(tensor).max():g}: use "
            "--dtype=bfloat16 or float32"
        )
    return converted


def _read_object(path: Path, where: str) -> dict[str, Any]:
    """Returns the JSON object in the file `path`. Raises ConfigError for a missing file and for other contents."""
    try:
        contents = parse_json(read_text(path))
    except FileNotFoundError:
        raise ConfigError(
            f"{where} has no {path.name}: name a folder that transformers' save_pretrained wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{where}: {path.name} contains no JSON object")
    return contents


def _weight_files(folder: Path, where: str) -> list[str]:
    """Returns the names of the files of weights. Raises ConfigError if there are none that can be read."""
    if (folder / _WEIGHTS).exists():
        return [_WEIGHTS]
    if (folder / _INDEX).exists():
        names = _read_object(folder / _INDEX, where).get("weight_map")
        is_table = isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
        if not is_table or any(name != Path(name).name for name in names.values()):
            raise ConfigError(f"{where}: {_INDEX} has no weight_map of names of files: download it again")
        return sorted(set(names.values()))
    others = {path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern)}
    if not others:
        raise ConfigError(f"{where} has no {_WEIGHTS} and no {_INDEX}: name a folder with a model's weights")
    raise ConfigError(
        f"{where} has weights in {min(others)} alone, and no {_WEIGHTS}; pickled files can run any code when they are "
        "read, so only safetensors are: convert the folder with transformers' from_pretrained and save_pretrained"
    )


@contextlib.contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    """Opens a safetensors file. Within this context, errors of safetensors become a ConfigError that names the file."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise _no_safetensors_library() from None
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except ConfigError:
        raise
    except Exception as error:  # safetensors raises an exception of its own, and OSError
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: {path.name} is truncated or not a safetensors file ({reason}): copy it again"
        ) from error


def _no_safetensors_library() -> ConfigError:
    return ConfigError("Hugging Face folders need safetensors: pip install -e '.[huggingface]'")
