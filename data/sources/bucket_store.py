"""Token stores and texts in buckets: copies on this machine, where they are mapped into memory.

A store in a bucket has the files of data/store/store.py under the same names. meta.json is written last, so a store
without it is incomplete.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.sources.config import DEFAULT_CACHE_DIR
from data.sources.files import expand_home
from files.paths import absolute, copy_file, in_bucket, is_file, version_of
from files.verification import damaged, read_meta, verify

_REQUESTS = 16  # at a time


def local_cache(cache_dir: str) -> Path:
    """Returns the folder of this machine for token stores: `data.cache_dir`, or that of copies if it is in a bucket."""
    folder = cache_dir
    if in_bucket(cache_dir):
        folder = f"{DEFAULT_CACHE_DIR}/buckets/{_hash(absolute(cache_dir))}"
    return Path(expand_home(folder, f"data.cache_dir={cache_dir!r}"))


def has_store(address: str) -> bool:
    """Returns whether the bucket has a complete store at `address`."""
    return is_file(f"{address}/meta.json")


def download_store(address: str, folder: Path, note: Callable[[str], Any]) -> None:
    """Copies the store at `address` to `folder`, which gets its name once all files have their checksums.

    note: called with one line at the end. Raises ConfigError for a damaged store, and OSError.
    """
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    building.mkdir(parents=True)
    try:
        copy_file(f"{address}/meta.json", building / "meta.json")
        try:
            meta = read_meta(building)
            for name in meta["file_sizes"]:
                copy_file(f"{address}/{name}", building / name)
            verify(building, meta)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise damaged(address, error) from None
        with contextlib.suppress(OSError):  # another process of this machine has finished first
            os.rename(building, folder)
        size = sum(meta["file_sizes"].values())
        note(f"token store {address}: copied to {folder} ({size / 1e6:,.1f} MB), checksums verified")
    finally:
        shutil.rmtree(building, ignore_errors=True)


def upload_store(folder: Path, address: str, note: Callable[[str], Any]) -> None:
    """Copies the store in `folder` to the bucket, meta.json last.

    Another process may upload the same store at once: equal texts and an equal tokenizer make equal files.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "meta.json"):
        copy_file(path, f"{address}/{path.name}")
    note(f"token store {folder}: copied to {address}")


def local_copies(addresses: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """Returns the path of a copy in `folder` and the version of each object, which is downloaded if it has changed.

    A copy that has the object's version is not transferred again. Older copies of an object are deleted. Raises
    OSError.
    """
    if not addresses:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return list(threads.map(functools.partial(_local_copy, folder), addresses))


def _local_copy(folder: Path, address: str) -> tuple[str, str]:
    """Returns the path of a copy in `folder` and the version of an object."""
    version = version_of(address)
    path = folder / f"{_hash(address)}-{_hash(version)}"
    if not path.exists():
        temporary = folder / f"{path.name}.{uuid.uuid4().hex}.tmp"
        try:
            copy_file(address, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        for old in folder.glob(f"{_hash(address)}-*"):
            if old != path and old.suffix != ".tmp":
                old.unlink(missing_ok=True)
    return str(path), version


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
