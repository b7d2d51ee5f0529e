"""Checksums of the files of a token store: BLAKE2b of each file in meta.json, and of meta.json itself."""

import contextlib
import functools
import hashlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    return {**meta, "meta_checksum": _checksum_of(meta)}


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns the contents of meta.json. Raises OSError, and ValueError unless they are what `sealed` has returned."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        checksum = meta.pop("meta_checksum")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("meta.json is not what was written") from None
    if checksum != _checksum_of(meta):
        raise ValueError("meta.json differs from its checksum")
    return sealed(meta)


def verify(folder: Path, meta: Mapping[str, Any]) -> None:
    """Reads all files of the store `folder`. Raises ValueError, naming a file that is not what was written.

    Raises OSError for a file that cannot be read.
    """
    for name, checksum in meta["checksums"].items():
        if file_checksum(folder / name) != checksum:
            raise ValueError(f"{name} differs from its checksum")


def is_small(meta: Mapping[str, Any]) -> bool:
    """Returns whether a store is verified when it is opened."""
    return sum(meta["file_sizes"].values()) < SMALL_BYTES


def damaged(folder: Path | str, error: Exception) -> ConfigError:
    """Returns the error for a damaged store. folder: where it is, possibly in a bucket."""
    return ConfigError(
        f"token store {folder} is damaged ({type(error).__name__}: {' '.join(str(error).split())}): "
        "delete that folder, and the next run rebuilds it"
    )


class BackgroundVerification(threading.Thread):
    """Verifies a large store in a thread, once: this machine remembers for a month that a store was whole.

    Args:
      folder: of the store, whose meta.json and file sizes were checked when it was opened.
      meta: the contents of meta.json.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any]):
        super().__init__(name="verify-store", daemon=True)
        self._folder, self._meta = folder, meta
        self._error: Exception | None = None
        if not (is_small(meta) or was_verified(folder, meta)):
            self.start()

    def check(self) -> None:
        """Raises ConfigError if damage has been found so far."""
        if self._error is not None:
            raise damaged(self._folder, self._error)

    def run(self) -> None:
        try:
            verify(self._folder, self._meta)
        except (OSError, ValueError) as error:
            self._error = error
        else:
            remember_verified(self._folder, self._meta)


def was_verified(folder: Path, meta: Mapping[str, Any]) -> bool:
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
    return Path(_VERIFIED_STORES).expanduser() / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def _checksum_of(meta: Mapping[str, Any]) -> str:
    return _new_hash(json.dumps(meta, sort_keys=True).encode()).hexdigest()


_new_hash = functools.partial(hashlib.blake2b, digest_size=16)
