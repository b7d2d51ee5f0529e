"""Documents as text, before tokenization, and what a pass over the documents skipped."""

import dataclasses
from typing import NamedTuple


class RawDocument(NamedTuple):
    """One document as text."""

    name: str  # the file or dataset that the document is from
    text: str  # the response, where the document has a prompt
    prompt: str = ""
    label: str = ""  # the name of the document's class; "" for none
    file_digest: int = 0  # 64 bits: a digest of the text that the document is cut from, such as a file
    is_heldout: bool = False  # whether the document is of the corpus' own held-out text


@dataclasses.dataclass
class Skipped:
    """What a pass over the documents skipped."""

    empty: int = 0  # documents of whitespace only
    files: list[str] = dataclasses.field(default_factory=list)  # unreadable files, with data.on_unreadable="skip"
    lines: int = 0  # invalid lines of JSON-lines files, rows and records, with data.on_unreadable="skip"
    first_line: str = ""  # where the first of those lines is: "file:line", or "file, row 3"
