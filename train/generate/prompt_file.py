"""Files of prompts, and of the answers to them."""

import codecs
import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any, TextIO

from contract.errors import ConfigError
from data.jsonl import InvalidLine, read_object, string_field
from train.generate.texts import NamedText


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
        except InvalidLine as error:
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
        raise InvalidLine(f"is not UTF-8 (byte {error.start} of the line)") from None


def _prompt_of_object(line: bytes) -> str:
    fields = read_object(line)
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise InvalidLine('has no \'prompt\': write an object such as {"prompt": "Once upon a time"}')
    return string_field(fields, "prompt", may_be_empty=True)


def to_json(record: Any) -> str:
    """Returns a dataclass, such as Generated or Filled, as one line of JSON."""
    return json.dumps(_plain(record), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Returns dataclasses and named tuples as dicts, at any depth."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def check_output(path: str | None) -> None:
    """Raises ConfigError if a file cannot be written at `path`; None is standard output."""
    if path is None:
        return
    destination, is_replaced = _destination(path)
    folder = os.path.dirname(destination)
    is_writable = os.path.isdir(folder) and os.access(folder if is_replaced else destination, os.W_OK)
    if not is_writable or os.path.isdir(destination):
        raise ConfigError(f"--out={path} cannot be written: name a file in an existing folder")


@contextlib.contextmanager
def writing(path: str | None) -> Iterator[TextIO]:
    """Yields a file that is renamed to `path` at the end, and removed after an exception; None: standard output.

    A device, a pipe or a socket, such as /dev/null, is not replaced by a file: what is written goes there at once.
    """
    if path is None:
        yield sys.stdout
        return
    destination, is_replaced = _destination(path)
    # A random name, which no file of the user has, nor one of another command that writes to the same path.
    name = os.path.join(os.path.dirname(destination), f".{uuid.uuid4().hex}.tmp") if is_replaced else destination
    try:
        with open(name, "x" if is_replaced else "w", encoding="utf-8") as file:
            yield file
        if is_replaced:
            os.replace(name, destination)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"--out={path} cannot be written: {error.strerror}") from error
    finally:
        if is_replaced:
            with contextlib.suppress(FileNotFoundError):
                os.remove(name)


def _destination(path: str) -> tuple[str, bool]:
    """Returns where the output is written, with links followed, and whether a new file is renamed to this path."""
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.islink(path) and path.startswith(("/dev/", "/proc/")):  # /dev/stdout, an open file of this process
        return path, False
    path = os.path.realpath(path)
    return path, os.path.isfile(path) or not os.path.exists(path)
