"""Writes files atomically: a reader sees the old contents or the new ones, whenever the writer is killed."""

import json
import os
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from files.json_text import parse_json
from files.storage import read_text, write_bytes


def write_text(path: str | os.PathLike, text: str, *, replace: bool = True) -> None:
    """Writes `text` to the file `path` in UTF-8, as files.storage.write_bytes does."""
    write_bytes(path, text.encode("utf-8"), replace=replace)


def write_json(path: str | os.PathLike, fields: Mapping[str, Any], *, replace: bool = True) -> None:
    """Writes nested mappings of JSON values as `write_text` does. Tuples become lists."""
    write_text(path, json.dumps(fields, indent=2) + "\n", replace=replace)


def read_json(path: str | os.PathLike, *, remedy: str = "delete it to make it again") -> dict[str, Any]:
    """Returns what `write_json` wrote. Raises ConfigError, with a remedy, for a file that is not such."""
    try:
        fields = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}: {remedy}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is damaged: it has no fields: {remedy}")
    return fields
