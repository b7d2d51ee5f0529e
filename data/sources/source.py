"""The interface of a corpus: a Source, the Parts that it is read in, and their documents as text."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class RawDocument(NamedTuple):
    """One document as text, before tokenization."""

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

    def add(self, other: "Skipped") -> None:
        """Adds what the pass over a later part skipped."""
        self.empty += other.empty
        self.files += other.files
        self.lines += other.lines
        self.first_line = self.first_line or other.first_line

    def __str__(self) -> str:
        """Returns the counts, for messages."""
        unreadable = f"{len(self.files)} unreadable files and {self.lines} unreadable lines or records"
        return f"skipped {self.empty} empty documents, {unreadable}"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a corpus, such as a file, which is read independently of the others. It can be pickled.

    Attributes:
      name: of the file or shard, for messages.
      num_bytes: approximate size of the text, for a progress bar.
      read: starts a pass over the part's documents that are not empty, always in the same order, and counts what the
        pass skips. Raises ConfigError for what cannot be read.
      is_heldout: whether it is text of data.heldout_path.
    """

    name: str
    num_bytes: int
    read: Callable[[Skipped], Iterator[RawDocument]]
    is_heldout: bool = False

    def documents(self, skipped: Skipped) -> Iterator[RawDocument]:
        """Starts a pass: see `read`. The documents of a held-out part say so."""
        documents = self.read(skipped)
        return (document._replace(is_heldout=True) for document in documents) if self.is_heldout else documents


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus that has been found, but not been read. It can be pickled.

    Attributes:
      where: the config fields that name the corpus, for messages.
      identity: JSON values that change whenever the documents may have changed.
      cut: how documents are cut from the source's texts. Documents of sources that cut alike are comparable one by one.
      parts: the corpus, in order. Parts may be read at the same time, also in other processes.
    """

    where: str
    identity: dict[str, Any]
    cut: str
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """Approximate size of the text, for a progress bar."""
        return sum(part.num_bytes for part in self.parts)

    def documents(self, skipped: Skipped) -> Iterator[RawDocument]:
        """Starts a pass over the documents of all parts, one part after the other."""
        for part in self.parts:
            yield from part.documents(skipped)


def skip_empty(documents: Iterable[RawDocument], skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents whose text is not only whitespace, and counts the others."""
    for document in documents:
        if document.text.strip():
            yield document
        else:
            skipped.empty += 1
