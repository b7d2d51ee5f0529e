"""Reads a Hugging Face folder: config.json and safetensors files. Pickled files are never opened."""

import contextlib
import dataclasses
import fnmatch
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.sources.files import expand_home
from files.paths import check_local, list_names, read_text

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Files of weights that Python's pickle reads, or another framework.
_OTHER_WEIGHTS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.pickle", "*.pkl", "*.ckpt", "*.h5", "*.msgpack")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


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
    """Tensors of safetensors files by name. A tensor is read when it is looked up, and not kept.

    shapes: name -> shape. Known without reading a tensor.
    """

    def __init__(self, where: str, files: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = dict(shapes)
        self._where, self._files = where, files

    def __getitem__(self, name: str) -> np.ndarray:
        path = self._files[name]
        with _errors_name(self._where, path), _open(path) as file:
            dtype = file.get_slice(name).get_dtype()
            if dtype.startswith("F") and dtype not in ("F64", "F32", "F16"):
                raise ConfigError(
                    f"{self._where}: tensor {name} of {path.name} is quantized to {dtype}, which is not supported: "
                    "write the folder again in float32, float16 or bfloat16"
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

    The config.json of a run has the sections of configs/base.py. A folder without a config.json is of Hugging Face's
    kind if it has files of weights.
    """
    try:
        config = json.loads(read_text(os.path.join(path, "config.json")))
    except FileNotFoundError:
        names = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = list_names(path)
        return any(fnmatch.filter(names, pattern) for pattern in ("*.safetensors", *_OTHER_WEIGHTS))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and not {"data", "model", "train"} <= config.keys()


def open_folder(path: str | os.PathLike, where: str) -> HuggingFaceFolder:
    """Returns the Hugging Face folder `path`, with every file of weights checked for its size.

    where: the flag or config field that names the folder, for messages.

    Raises ConfigError, one line: no folder, no config.json, a config.json without model_type, weights that are not
    safetensors, files of weights that are missing, truncated or not safetensors.
    """
    check_local(os.fspath(path), where)
    folder = Path(expand_home(os.fspath(path), where))
    if not folder.is_dir():
        raise ConfigError(f"{where} is not a folder: name a folder that transformers' save_pretrained wrote")
    config = read_json_object(folder / "config.json", where)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError(f"{where}: config.json has no model_type, so the architecture is unknown: add it")
    files, shapes = _find_tensors(folder, where)
    return HuggingFaceFolder(folder, where, config, Tensors(where, files, shapes))


def read_json_object(path: Path, where: str) -> dict[str, Any]:
    """Returns the JSON object in the file `path`. Raises ConfigError for a missing file and for other contents."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{where} has no {path.name}: name a folder that transformers' save_pretrained wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {path.name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{where}: {path.name} contains no JSON object")
    return contents


def _find_tensors(folder: Path, where: str) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
    """Returns the file and the shape of each tensor."""
    if (folder / _WEIGHTS).exists():
        return _read_header(folder / _WEIGHTS, where)
    if not (folder / _INDEX).exists():
        raise _no_safetensors(folder, where)
    weight_map = read_json_object(folder / _INDEX, where).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ConfigError(f"{where}: {_INDEX} has no weight_map of tensors to files")
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(set(weight_map.values())):
        if os.path.basename(name) != name:
            raise ConfigError(f"{where}: {_INDEX} names {name!r}, which is not a file of this folder")
        if not (folder / name).exists():
            raise ConfigError(f"{where} has no {name}, which {_INDEX} names: copy that file too")
        shard_files, shard_shapes = _read_header(folder / name, where)
        files, shapes = files | shard_files, shapes | shard_shapes
    absent = [name for name in weight_map if name not in files]
    if absent:
        raise ConfigError(f"{where}: {weight_map[absent[0]]} has no tensor {absent[0]}, which {_INDEX} names")
    return files, shapes


def _no_safetensors(folder: Path, where: str) -> ConfigError:
    """Returns the error for a folder without model.safetensors and without an index."""
    others = {path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern)} - {*_NOT_WEIGHTS}
    if not others:
        return ConfigError(f"{where} has no {_WEIGHTS} and no {_INDEX}: name a folder with a model's weights")
    return ConfigError(
        f"{where} has weights in {min(others)} alone, and no {_WEIGHTS}; pickled files can run any code when they are "
        "read, so only safetensors are: convert the folder with transformers' from_pretrained and save_pretrained"
    )


def _read_header(path: Path, where: str) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
    with _errors_name(where, path), _open(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  not a dict
    return dict.fromkeys(shapes, path), shapes


def _open(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise ConfigError("Hugging Face folders need safetensors: pip install -e '.[huggingface]'") from None
    return safe_open(path, framework="numpy")


@contextlib.contextmanager
def _errors_name(where: str, path: Path) -> Iterator[None]:
    """Within this context, errors of safetensors become a ConfigError that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # safetensors raises an exception of its own, and OSError
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: {path.name} is truncated or not a safetensors file ({reason}): copy it again"
        ) from error
