"""Token stores and texts in buckets: copies on this machine, where they are mapped into memory.

A store in a bucket has the files of data/store/store.py under the same names. A file above PART_BYTES is in parts,
tokens.bin.part00000 and so on, each of which fits into memory and into one request. meta.json is written last, so a
store without it is incomplete.
"""

import collections
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
from files import buckets
from files.storage import in_bucket
from files.verification import damaged, read_meta, verify

PART_BYTES = 256 << 20
_REQUESTS = 16  # at a time


def local_cache(cache_dir: str) -> Path:
    """Returns the folder of this machine for token stores: `data.cache_dir`, or that of copies if it is in a bucket."""
    folder = cache_dir
    if in_bucket(cache_dir):
        folder = f"{DEFAULT_CACHE_DIR}/buckets/{_hash(buckets.normalized(cache_dir))}"
    return Path(expand_home(folder, f"data.cache_dir={cache_dir!r}"))


def has_store(address: str) -> bool:
    """Returns whether the bucket has a complete store at `address`."""
    return buckets.exists(f"{address}/meta.json")


def download_store(address: str, folder: Path, note: Callable[[str], Any]) -> None:
    """Copies the store at `address` to `folder`, which gets its name once all files have their checksums.

    note: called with one line at the end. Raises ConfigError for a damaged store, and OSError.
    """
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    building.mkdir(parents=True)
    try:
        (building / "meta.json").write_bytes(buckets.read(f"{address}/meta.json"))
        names = {key.removeprefix(f"{buckets.normalized(address)}/") for key in buckets.keys(address)}
        try:
            meta = read_meta(building)
            for name in meta["file_sizes"]:
                _download(address, name, names, building / name)
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
    files = sorted(path for path in folder.iterdir() if path.name != "meta.json")
    for path in files:
        with open(path, "rb") as file:
            if path.stat().st_size <= PART_BYTES:
                buckets.write(f"{address}/{path.name}", file.read())
                continue
            for number, part in enumerate(iter(lambda: file.read(PART_BYTES), b"")):
                buckets.write(f"{address}/{_part(path.name, number)}", part)
    buckets.write(f"{address}/meta.json", (folder / "meta.json").read_bytes())
    note(f"token store {folder}: copied to {address}")


def local_copies(addresses: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """Returns the path of a copy in `folder` and the version of each object, which is downloaded if it has changed.

    A copy that has the object's version is not transferred again. Older copies of an object are deleted. Each object is
    held in memory while it is copied. Raises OSError.
    """
    if not addresses:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    copies: dict[str, list[Path]] = collections.defaultdict(list)  # from one list of the folder, which may be long
    for name in os.listdir(folder):
        if not name.endswith(".tmp"):
            copies[name.partition("-")[0]].append(folder / name)
    before = [copies.get(_hash(address), []) for address in addresses]
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return list(threads.map(functools.partial(_local_copy, folder), addresses, before))


def _local_copy(folder: Path, address: str, before: Sequence[Path]) -> tuple[str, str]:
    """Returns the path of a copy in `folder` and the version of an object. before: the copies that `folder` has."""
    prefix = f"{_hash(address)}-"
    versions = [path.name.removeprefix(prefix) for path in before]
    known = bytes.fromhex(versions[0]) if len(versions) == 1 else None
    contents, version = buckets.read_version(address, unless=known)
    path = folder / (prefix + version.hex())
    if contents is None:
        if known is not None and version == known:
            return str(path), version.hex()
        raise FileNotFoundError(2, os.strerror(2), address)
    temporary = folder / f"{prefix}{uuid.uuid4().hex}.tmp"
    try:
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    for old in before:
        if old != path:
            old.unlink(missing_ok=True)
    return str(path), version.hex()


def _download(address: str, name: str, names: set[str], path: Path) -> None:
    with open(path, "wb") as file:
        if name in names or _part(name, 0) not in names:
            file.write(buckets.read(f"{address}/{name}"))
            return
        number = 0
        while _part(name, number) in names:
            file.write(buckets.read(f"{address}/{_part(name, number)}"))
            number += 1


def _part(name: str, number: int) -> str:
    return f"{name}.part{number:05d}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
