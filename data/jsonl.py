"""JSON-lines files: a prompt and its response a line, or a text and perhaps its label.

    {"prompt": "Translate to German: one", "response": "eins"}
    {"text": "The match ended in a draw.", "label": "sport"}

Other keys are passed over. A blank line is no line.
"""

import json
from collections.abc import Iterator
from typing import Any

from contract.errors import ConfigError
from data.raw import RawDocument, Skipped


def read_jsonl(path: str, on_unreadable: str, skipped: Skipped) -> Iterator[RawDocument]:
    """The documents of a file, in its order.

    Raises ConfigError for a line that is neither of the two, naming file and line; with on_unreadable="skip" it is
    left out and counted in `skipped`. Raises OSError before the first document.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield _document(path, line)
            except _BadLine as error:
                if on_unreadable != "skip":
                    raise ConfigError(
                        f"{path}:{number} {error}: mend that line, or set data.on_unreadable='skip'"
                    ) from None
                skipped.first_line = skipped.first_line or f"{path}:{number}"
                skipped.lines += 1


class _BadLine(ValueError):
    """What is wrong with a line, to be said after its number."""


def _document(path: str, line: bytes) -> RawDocument:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BadLine(f"is not UTF-8 (byte {error.start} of the line)") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise _BadLine(f"is not JSON ({_message(error)})") from None
    keys = set(fields) if isinstance(fields, dict) else set()
    if {"prompt", "response"} <= keys and "text" not in keys:
        return RawDocument(path, _string(fields, "response"), _string(fields, "prompt", may_be_empty=True))
    if "text" in keys and not {"prompt", "response"} & keys:
        label = _string(fields, "label", may_be_empty=True) if "label" in keys else ""
        return RawDocument(path, _string(fields, "text"), label=label)
    raise _BadLine("must be an object with the keys 'prompt' and 'response', or 'text' and perhaps 'label'")


def _string(fields: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise _BadLine(f"has {value!r:.40} for {key!r}, which must be a string")
    if not (value.strip() or may_be_empty):
        raise _BadLine(f"has nothing in {key!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _BadLine(f"has half of a surrogate pair in {key!r}, at character {error.start}") from None
    return value


def _message(error: Exception) -> str:
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
