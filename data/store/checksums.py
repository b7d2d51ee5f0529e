"""Checksums of the files of a token store: BLAKE2b of each file in meta.json, and of meta.json itself."""

import contextlib
import functools
import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.program import print_note
from contract.errors import ConfigError

# A smaller store is verified whenever it is opened, at about 1 GB/s of one CPU core.
SMALL_BYTES = 256 << 20
# A larger store is verified again after this time, because a disk can change a file without a new modification time.
_VERIFIED_SECONDS = 30 * 24 * 3600
_VERIFIED_STORES = "~/.cache/cloze/verified"  # of this user on this machine, and not in the store, which may be copied


def file_checksum(path: Path) -> str:
    """Returns the checksum of a file's contents. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _new_hash).hexdigest()


def sealed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of meta.json with their own checksum."""
    fields = {name: value for name, value in meta.items() if name != "meta_checksum"}
    return fields | {"meta_checksum": _new_hash(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns the contents of meta.json. Raises OSError, and ValueError unless they are what `sealed` has returned."""
    with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
        meta = json.loads((folder / "meta.json").read_bytes())
        if isinstance(meta, dict) and meta == sealed(meta):
            return meta
    raise ValueError("meta.json is not what was written")


def check_files(folder: Path, meta: Mapping[str, Any]) -> None:
    """Compares the files of the store `folder` with their sizes and checksums, those of a large store once a month.

    Raises as `verify` does.
    """
    for name, size in meta["file_sizes"].items():
        if (actual := (folder / name).stat().st_size) != size:
            raise ValueError(f"{name} has {actual} bytes, not {size}")
    num_bytes = sum(meta["file_sizes"].values())
    if num_bytes < SMALL_BYTES:
        verify(folder, meta)
    elif not _was_verified(folder, meta):
        print_note(f"verifying the {num_bytes / 1e9:,.1f} GB of token store {folder}")
        verify(folder, meta)
        remember_verified(folder, meta)


def verify(folder: Path, meta: Mapping[str, Any]) -> None:
    """Reads all files of the store `folder`. Raises OSError, and ValueError for a file that is not what was written."""
    for name, checksum in meta["checksums"].items():
        if file_checksum(folder / name) != checksum:
            raise ValueError(f"{name} differs from its checksum")


def damaged(folder: Path | str, error: Exception) -> ConfigError:
    """Returns the error for a damaged store. folder: where it is, possibly in a bucket."""
    return ConfigError(
        f"token store {folder} is damaged ({type(error).__name__}: {' '.join(str(error).split())}): "
        "delete that folder, and the next run rebuilds it"
    )


def _was_verified(folder: Path, meta: Mapping[str, Any]) -> bool:
    """Returns whether `remember_verified` was called within the last month, and no file has been written since."""
    marker = _marker(folder, meta)
    newest = max((folder / name).stat().st_mtime for name in meta["file_sizes"])
    return marker.exists() and marker.stat().st_mtime > max(newest, time.time() - _VERIFIED_SECONDS)


def remember_verified(folder: Path, meta: Mapping[str, Any]) -> None:
    """Remembers on this machine that a store is whole, unless this user has no folder to write to."""
    with contextlib.suppress(OSError):
        path = _marker(folder, meta)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _marker(folder: Path, meta: Mapping[str, Any]) -> Path:
    """Returns the file that remembers the store `folder` of this host."""
    identity = f"{socket.gethostname()} {folder.resolve()} {meta['meta_checksum']}"
    return Path(os.path.expanduser(_VERIFIED_STORES)) / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


_new_hash = functools.partial(hashlib.blake2b, digest_size=16)
