"""JSON-lines files. Each line has a prompt and its response, or a text and optionally its label:

    {"prompt": "Translate to German: one", "response": "eins"}
    {"text": "The match ended in a draw.", "label": "sport"}

Other keys and blank lines are ignored.
"""

import json
from collections.abc import Iterator
from typing import Any

from contract.errors import ConfigError
from data.raw import RawDocument, Skipped


def read_jsonl(path: str, on_unreadable: str, skipped: Skipped, *, name: str = "") -> Iterator[RawDocument]:
    """Yields the documents of a file, in the file's order.

    name: of the file, for documents and messages, where `path` is a copy; `path` by default.

    Raises ConfigError, with file and line number, for a line that is neither of the two kinds. With
    on_unreadable="skip" such lines are counted in `skipped` instead. Raises OSError before the first document.
    """
    name = name or path
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield _document(name, line)
            except InvalidLine as error:
                if on_unreadable != "skip":
                    raise ConfigError(
                        f"{name}:{number} {error}: fix that line, or set data.on_unreadable='skip'"
                    ) from None
                skipped.first_line = skipped.first_line or f"{name}:{number}"
                skipped.lines += 1


class InvalidLine(ValueError):
    """An invalid line. The message states the problem and is printed after the line's number."""


def read_object(line: bytes) -> Any:
    """Returns the JSON value of a line. Raises InvalidLine for a line that is not UTF-8 or not JSON."""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidLine(f"is not UTF-8 (byte {error.start} of the line)") from None
    except json.JSONDecodeError as error:
        raise InvalidLine(f"is not JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise InvalidLine("is not JSON (nested too deeply)") from None
    except ValueError as error:  # an integer with more digits than sys.get_int_max_str_digits()
        raise InvalidLine(f"is not JSON that can be read ({str(error).partition(';')[0]})") from None


def _document(name: str, line: bytes) -> RawDocument:
    fields = read_object(line)
    keys = set(fields) if isinstance(fields, dict) else set()
    if {"prompt", "response"} <= keys and "text" not in keys:
        return RawDocument(name, string_field(fields, "response"), string_field(fields, "prompt", may_be_empty=True))
    if "text" in keys and not {"prompt", "response"} & keys:
        label = string_field(fields, "label", may_be_empty=True) if "label" in keys else ""
        return RawDocument(name, string_field(fields, "text"), label=label)
    raise InvalidLine("must be an object with the keys 'prompt' and 'response', or 'text' and optionally 'label'")


def string_field(fields: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    """Returns the text at `key`. Raises InvalidLine for a value that is not text, or that is blank."""
    value = fields[key]
    if not isinstance(value, str):
        raise InvalidLine(f"has {value!r:.40} for {key!r}, which must be a string")
    if not (value.strip() or may_be_empty):
        raise InvalidLine(f"has no text in {key!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidLine(f"has half of a surrogate pair in {key!r}, at character {error.start}") from None
    return value
