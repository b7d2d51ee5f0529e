"""What a source gives before tokens: a document's text, and what a pass over the corpus left out."""

import dataclasses
from typing import NamedTuple


class RawDocument(NamedTuple):
    """One document as it was read."""

    name: str  # the file or dataset that it is from
    text: str  # of a prompt and its response: the response
    prompt: str = ""  # stands before the text
    label: str = ""  # the class that it is of, by name


@dataclasses.dataclass
class Skipped:
    """What a pass over the documents left out."""

    empty: int = 0  # documents of nothing but whitespace
    files: list[str] = dataclasses.field(default_factory=list)  # unreadable, with data.on_unreadable="skip"
    lines: int = 0  # of JSON-lines files, likewise
    first_line: str = ""  # where the first of those stands: "file:line"
