"""Documents from the fields of records: JSON objects, rows of tables and tf.train.Examples.

A record has a prompt and its response, or a text and optionally its label. Other fields are ignored:

    {"prompt": "Translate to German: one", "response": "eins"}
    {"text": "The match ended in a draw.", "label": "sport"}

data.text_key is the key of the text: "text", or another one. A label may be an integer, and null is no label.
"""

import codecs
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from data.sources.raw import RawDocument

_SHOWN_KEYS = 8


class InvalidRecord(ValueError):
    """An invalid record. The message states the problem and is printed after the number of the line or the row."""


class _Repeated(dict[str, Any]):
    """A JSON object that has `key` more than once; RFC 8259, section 4, leaves open which of the values counts."""

    key: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = _Repeated(found)
    [(repeated.key, _)] = Counter(key for key, _ in pairs).most_common(1)
    return repeated


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def read_object(line: bytes) -> Any:
    """Returns the JSON value of a line.

    Raises InvalidRecord for a line that is not UTF-8 or not JSON, and for an object that has a key twice. Objects in
    this object may: no document is made of them.
    """
    if line.startswith(codecs.BOM_UTF8):
        raise InvalidRecord("begins with a byte order mark (U+FEFF): a file may have one, at its start")
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"is not UTF-8 (byte {error.start} of the line)") from None
    except json.JSONDecodeError as error:
        raise InvalidRecord(f"is not JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise InvalidRecord("is not JSON (nested too deeply)") from None
    except ValueError as error:  # an integer with more digits than sys.get_int_max_str_digits()
        raise InvalidRecord(f"is not JSON that can be read ({str(error).partition(';')[0]})") from None
    if isinstance(value, _Repeated):
        raise InvalidRecord(f"has the key {value.key!r} more than once")
    return value


def document_of(name: str, fields: Any, text_key: str, *, may_be_blank: bool) -> RawDocument:
    """Returns the document of a record.

    name: of the file, for the document. fields: the record, a dict. text_key: data.text_key, the key of the text.
    may_be_blank: whether the text or the response may be whitespace only.

    Raises InvalidRecord for a value that is neither of the two kinds of records.
    """
    keys = set(fields) if isinstance(fields, dict) else set()
    if {"prompt", "response"} <= keys and text_key not in keys:
        response = string_field(fields, "response", may_be_empty=may_be_blank)
        return RawDocument(name, response, string_field(fields, "prompt", may_be_empty=True))
    if text_key in keys and not {"prompt", "response"} & keys - {text_key}:
        text = string_field(fields, text_key, may_be_empty=may_be_blank)
        return RawDocument(name, text, label=_label(fields) if "label" in keys - {text_key} else "")
    has = f", and has the keys {', '.join(map(repr, sorted(keys)[:_SHOWN_KEYS]))}" if keys else ""
    raise InvalidRecord(
        f"must be an object with the keys 'prompt' and 'response', or {text_key!r} (data.text_key) and optionally "
        f"'label'{has}"
    )


def decoded_value(key: str, value: Any) -> Any:
    """Returns text for UTF-8 bytes, and other values as they are. Raises InvalidRecord for other bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"is not UTF-8 in {key!r} (byte {error.start})") from None
    return value


def class_name(names: Sequence[str], number: int | None) -> str | None:
    """Returns the name of a class; None for no class, which datasets also write as -1 where labels are secret."""
    return names[number] if number is not None and 0 <= number < len(names) else None


def _label(fields: dict[str, Any]) -> str:
    """Returns the label of a record that has one. Raises InvalidRecord for one that is neither text nor an integer."""
    label = fields["label"]
    if label is None:
        return ""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    return string_field(fields, "label", may_be_empty=True)


def string_field(fields: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    """Returns the text at `key`. Raises InvalidRecord for a value that is not text, or that is blank."""
    value = fields[key]
    if not isinstance(value, str):
        raise InvalidRecord(f"has {value!r:.40} for {key!r}, which must be a string")
    if not (value.strip() or may_be_empty):
        raise InvalidRecord(f"has no text in {key!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"has half of a surrogate pair in {key!r}, at character {error.start}") from None
    return value
