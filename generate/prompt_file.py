"""Files of prompts, and the answers to them as JSON lines."""

import codecs
import dataclasses
import json
import os
import sys
from typing import Any

from contract.errors import ConfigError
from data.sources.records import InvalidRecord, read_object, string_field
from generate.texts import NamedText


def read_prompts(path: str) -> list[NamedText]:
    """Returns the prompts of a file, in its order; "-" is standard input.

    A .jsonl file has an object with the field "prompt" in each line; its other fields and blank lines are ignored. Any
    other file has a prompt in each line. There, a blank line is an empty prompt.

    Raises ConfigError for a file that cannot be read or has no prompt, and, with the number of the line, for text that
    is not UTF-8 and for a line of a .jsonl file without a prompt.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else _read(path)
    except OSError as error:
        raise ConfigError(f"--prompts={path} cannot be read ({error.strerror}): name a file, or - for stdin") from None
    read_line = _prompt_of_object if path.endswith(".jsonl") else _prompt_of_line
    prompts = []
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        del lines[-1]  # the end of the last line
    for number, line in enumerate(lines, start=1):
        where = f"--prompts={path}, line {number}"
        if path.endswith(".jsonl") and not line.strip():
            continue
        try:
            prompts.append(NamedText(read_line(line.removesuffix(b"\r")), where))
        except InvalidRecord as error:
            raise ConfigError(f"{where} {error}") from None
    if not prompts:
        raise ConfigError(f"--prompts={path} has no prompts: write one in each line")
    return prompts


def _read(path: str) -> bytes:
    with open(os.path.expanduser(path), "rb") as file:
        return file.read()


def _prompt_of_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"is not UTF-8 (byte {error.start} of the line)") from None


def _prompt_of_object(line: bytes) -> str:
    fields = read_object(line)
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise InvalidRecord('has no \'prompt\': write an object such as {"prompt": "Once upon a time"}')
    return string_field(fields, "prompt", may_be_empty=True)


def to_json(record: Any, *, is_ascii: bool = False) -> str:
    """Returns a dataclass, such as Generated or Filled, as one line of JSON.

    is_ascii: escape other characters, for a terminal or a pipe whose encoding cannot express them.
    """
    return json.dumps(_plain(record), ensure_ascii=is_ascii)


def _plain(value: Any) -> Any:
    """Returns dataclasses and named tuples as dicts, at any depth."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return [_plain(item) for item in value] if isinstance(value, list) else value
