"""Checks of folders that `save_to_disk` of Hugging Face's datasets wrote, for which the library has none.

The library writes the files data-*-of-*.arrow first and state.json last. It reads an Arrow file that was cut off
between two batches of rows as a shorter one, and the files of a folder without state.json as a folder of files.
"""

import contextlib
import glob
import json
import os

from contract.errors import ConfigError

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of a whole Arrow stream
_SHARDS = "data-*-of-*.arrow"


def is_saved(folder: str) -> bool:
    """Returns whether `folder` has a saved dataset, or one with several splits."""
    return any(os.path.exists(os.path.join(folder, name)) for name in ("state.json", "dataset_dict.json"))


def check_saved(folder: str, split: str, where: str) -> None:
    """Raises ConfigError where saving `split` of the dataset in `folder` was interrupted, or a file of it was cut off.

    Also for a split without rows: the library writes it and cannot load it, nor any other split of its dataset. What
    the library itself notices, such as a missing file, is left to it.

    where: the config field with its value, for messages.
    """
    splits = _read(folder, "dataset_dict.json", "splits")
    for each in ["", *splits] if splits is not None else [""]:
        of_split = os.path.join(folder, each) if each else folder
        has_state = os.path.exists(os.path.join(of_split, "state.json"))
        shards = glob.glob(os.path.join(glob.escape(of_split), _SHARDS))
        if shards and not has_state:
            raise ConfigError(
                f"{where}: {of_split} has {os.path.basename(min(shards))} and no state.json, so save_to_disk was "
                "interrupted: save the dataset again"
            )
        files = _read(of_split, "state.json", "_data_files")
        if files == []:
            raise ConfigError(f"{where}: {of_split} is a saved dataset without rows: save one that has rows")
        if each not in ("", split):
            continue
        for file in files or []:
            _check_whole(os.path.join(of_split, file["filename"]), where)


def _check_whole(path: str, where: str) -> None:
    """Raises ConfigError for an Arrow file that does not end as a whole one."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - len(_END_OF_STREAM), 0))
        if file.read() != _END_OF_STREAM:
            raise ConfigError(f"{where}: {path} is incomplete: save the dataset again")


def _read(folder: str, name: str, key: str) -> list | None:
    """Returns the list at `key` of a JSON file, None where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found = json.load(file)
        if isinstance(found, dict) and isinstance(found.get(key), list):
            return found[key]
    return None
