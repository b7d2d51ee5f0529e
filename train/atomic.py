"""Writes files atomically: a reader sees the old contents or the new ones, whenever the writer is killed."""

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from contract.json_text import parse_json


def write_text(path: str | os.PathLike, text: str, *, replace: bool = True) -> None:
    """Writes `text` to the file `path` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"), replace=replace)


def write_bytes(path: str | os.PathLike, contents: bytes, *, replace: bool = True) -> None:
    """Writes the file `path` and waits until the disk has it. Several processes may write at once.

    Raises OSError if the file cannot be written; FileExistsError if the file exists and `replace` is False.
    """
    temporary = f"{os.fspath(path)}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_json(path: str | os.PathLike, fields: Mapping[str, Any], *, replace: bool = True) -> None:
    """Writes nested mappings of JSON values as `write_text` does. Tuples become lists."""
    write_text(path, json.dumps(fields, indent=2) + "\n", replace=replace)


def read_json(path: str | os.PathLike, *, remedy: str = "delete it to make it again") -> dict[str, Any]:
    """Returns what `write_json` wrote. Raises ConfigError, with a remedy, for a file that is not such."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = parse_json(file.read())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}: {remedy}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is damaged: it has no fields: {remedy}")
    return fields
