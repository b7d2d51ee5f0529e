"""Checksums of the files of a token store: BLAKE2b of each file in meta.json, and of meta.json itself.

A larger file has a checksum for each piece of 256 MiB, so that several processes divide the verification.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from command.program import print_note
from contract.errors import ConfigError
from files.atomic import parse_json

# A smaller store is verified whenever it is opened, at about 1 GB/s of one CPU core.
SMALL_BYTES = 256 << 20
TOKENS = "tokens.bin"
# A larger store is verified again after this time, because a disk can change a file without a new modification time.
_VERIFIED_SECONDS = 30 * 24 * 3600
_PIECE_BYTES = 256 << 20
_DIGITS = 32  # of a piece's checksum
_ERRORS = (ConfigError, OSError, ValueError)  # of a verification; a ConfigError is a ValueError
Piece = tuple[str, int, int, str]  # file, first byte, size and checksum
AllGather = Callable[[Any], list[Any]]  # Exchanges.all_gather of the processes that open a store
_FILE_NAME = re.compile(r"\w+\.(npy|json|bin)")
_VERIFIED_STORES = "~/.cache/cloze/verified"  # of this user on this machine, and not in the store, which may be copied


def file_checksum(path: Path) -> str:
    """Returns the checksum of a file's contents: 32 digits for each piece of it. Raises OSError."""
    with open(path, "rb") as file:
        pieces = iter(functools.partial(file.read, _PIECE_BYTES), b"")
        return "".join(new_hash(piece).hexdigest() for piece in pieces)


def sealed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of meta.json with their own checksum."""
    fields = {name: value for name, value in meta.items() if name != "meta_checksum"}
    return fields | {"meta_checksum": new_hash(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns the contents of meta.json. Raises OSError, and ValueError unless they are what `sealed` has returned."""
    with contextlib.suppress(ValueError):
        meta = parse_json((folder / "meta.json").read_bytes())
        if isinstance(meta, dict) and meta == sealed(meta) and _is_of_a_store(meta):
            return meta
    raise ValueError("meta.json is not what was written")


def _is_of_a_store(meta: Mapping[str, Any]) -> bool:
    """Returns whether the types and the names of files are a store's. Others could make a reader write elsewhere."""
    names = [name for key in ("file_sizes", "checksums") for name in meta.get(key, ())]
    return meta.get("dtype") in ("uint8", "uint16", "uint32") and all(map(_FILE_NAME.fullmatch, names))


def without_tokens(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of meta.json with the sizes and checksums of all files but tokens.bin."""
    others = {
        key: {name: meta[key][name] for name in meta[key] if name != TOKENS} for key in ("file_sizes", "checksums")
    }
    return {**meta, **others}


def check_files(folder: Path, meta: Mapping[str, Any], all_gather: AllGather) -> None:
    """Compares the files of the store `folder` with their sizes and checksums, those of a large store once a month.

    The processes of `all_gather` divide the verification of a large one.

    Raises as `verify` does, in all processes that share the folder if one of them finds damage.
    """
    for name, size in meta["file_sizes"].items():
        if (actual := (folder / name).stat().st_size) != size:
            raise ValueError(f"{name} has {actual} bytes, not {size}")
    if sum(meta["file_sizes"].values()) >= SMALL_BYTES:
        _check_together(folder, meta, all_gather)
        return
    for name, checksum in meta["checksums"].items():
        if file_checksum(folder / name) != checksum:
            raise ValueError(f"{name} differs from its checksum")


def _check_together(folder: Path, meta: Mapping[str, Any], all_gather: AllGather) -> None:
    """Verifies a store, a part of it in each of the processes that see the same files.

    Copies on other hosts have other inodes and times, and each group of processes verifies its own.
    """
    info = (folder / "meta.json").stat()
    place = f"{folder.name} {info.st_ino} {info.st_ctime_ns}"
    what = f"{sum(meta['file_sizes'].values()) / 1e9:,.1f} GB of token store {folder}"
    check = functools.partial(verify, folder, meta)
    if verify_together(what, place, _was_verified(folder, meta), check, all_gather) is not None:
        remember_verified(folder, meta)


def verify_together(
    what: str, place: str, known: bool, check: Callable[[slice], None], all_gather: AllGather
) -> int | None:
    """Divides a verification among the processes at the same `place`, unless each of them knows that it was made.

    Args:
      what: is verified, for a message.
      place: of the files, the same text in all processes that see them.
      known: whether this process knows that the files are whole.
      check: verifies a part of the pieces. Raises OSError, and ValueError for damage.
      all_gather: of the processes; it is called twice.

    Returns the number of this process at the place if all parts have been verified now, so that no process remembers
    this before; otherwise None. Raises as `check` does, in all processes at the place if it raises in one of them.
    """
    me, error = uuid.uuid4().hex, None
    found = all_gather([place, me, known])
    group = {name: verified for where, name, verified in filter(None, found) if where == place}
    members = list(group)
    if not all(group.values()):
        if me == members[0]:
            shared = f", a part in each of {len(group)} processes" if len(group) > 1 else ""
            print_note(f"verifying the {what}{shared}")
        try:
            check(slice(members.index(me), None, len(group)))
        except (OSError, ValueError) as raised:
            error = raised
    # In any case, so that all processes make the same number of exchanges.
    kind = next((k for k, each in enumerate(_ERRORS) if isinstance(error, each)), 0)
    errors = dict(filter(None, all_gather([me, error and [kind, str(error)]])))
    if isinstance(error, OSError):
        raise error
    for kind, message in filter(None, map(errors.get, members)):
        raise _ERRORS[kind](message)
    return members.index(me) if not all(group.values()) and errors.keys() >= group.keys() else None


def verify(folder: Path, meta: Mapping[str, Any], part: slice = slice(None)) -> None:
    """Reads the files of the store `folder`. Raises OSError, and ValueError for a file that is not what was written.

    part: of the pieces of all files.
    """
    for name, start, size, checksum in pieces(meta)[part]:
        if _piece_checksum(folder / name, start, size) != checksum:
            raise ValueError(f"{name} differs from its checksum")


def _piece_checksum(path: Path, start: int, size: int) -> str:
    digest, end = new_hash(), start + size
    with open(path, "rb") as file:
        file.seek(start)
        while block := file.read(min(1 << 20, end - file.tell())):
            digest.update(block)
    return digest.hexdigest()


def pieces(meta: Mapping[str, Any]) -> list[Piece]:
    """Returns the pieces of all files.

    A file with one checksum is one piece of any size, as in stores of earlier commits.
    """
    found = []
    for name, checksum in meta["checksums"].items():
        parts = [checksum[k : k + _DIGITS] for k in range(0, len(checksum), _DIGITS)]
        size = _PIECE_BYTES if len(parts) > 1 else meta["file_sizes"][name]
        found += [(name, k * size, size, part) for k, part in enumerate(parts)]
    return found


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


new_hash = functools.partial(hashlib.blake2b, digest_size=16)
