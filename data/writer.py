"""Writes the files of a token store (data/store.py), in one pass and with bounded memory for tokens."""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from contract.errors import ConfigError
from data.files import text_digest
from data.minhash import NearDuplicateSearch, first_of_each
from data.raw import RawDocument, Skipped
from data.sources import Source
from data.tokenizer import Tokenizer
from data.verification import file_checksum, sealed

_FLUSH_TOKENS = 1 << 20
_SAMPLED_TEXTS, _SAMPLED_CHARACTERS = 64, 2000  # texts that are decoded again, and the start of each that is used


def write_store(folder: Path, source: Source, tokenizer: Tokenizer, *, name: str, progress: bool) -> None:
    """Writes the token store of `source` into the empty `folder`.

    meta.json is written last and contains the sizes and checksums of the other files.

    name: what the folder will be named. progress: show a bar, if standard error is a terminal that can redraw a line.

    Raises ConfigError where the corpus has no text or cannot be read, and OSError where the folder cannot be written.
    """
    skipped = Skipped()
    with open(folder / "tokens.bin", "wb") as tokens, _progress_bar(source, progress) as show_progress:
        writer = _Writer(tokens, tokenizer, NearDuplicateSearch(folder))
        for document in source.documents(skipped):
            if not writer.add(document):
                skipped.empty += 1
            if writer.pending_tokens >= _FLUSH_TOKENS:
                writer.flush()
                show_progress(writer.num_bytes)
        writer.flush()
    if not writer.digests:
        unreadable = f"{len(skipped.files)} unreadable files and {skipped.lines} unreadable lines or records"
        raise ConfigError(
            f"{source.where} contains no document with text (skipped {skipped.empty} empty documents, {unreadable}): "
            "name another corpus"
        )
    for array_name, column in writer.arrays().items():
        _write_array(folder / f"{array_name}.npy", column)
    _write_json(folder / "names.json", list(writer.names))
    _write_json(folder / "labels.json", list(writer.labels))
    meta = {
        "name": name,
        "dtype": writer.dtype.name,
        "cut": source.cut,
        "num_documents": len(writer.digests),
        "num_tokens": writer.offsets[-1],
        "num_bytes": writer.num_bytes,
        "num_unknown": writer.num_unknown,
        "near_duplicates_searched": writer.search.complete,
        "sampled_texts": writer.sampled_texts,
        "changed_texts": writer.changed_texts,
        "content_digest": writer.content_digest(),
        "skipped_empty": skipped.empty,
        "skipped_files": skipped.files,
        "skipped_lines": skipped.lines,
        "first_skipped_line": skipped.first_line,
        "file_sizes": {file.name: file.stat().st_size for file in sorted(folder.iterdir())},
        "checksums": {file.name: file_checksum(file) for file in sorted(folder.iterdir())},
    }
    _write_json(folder / "meta.json", sealed(meta))


class _Writer:
    """Appends documents to tokens.bin, a million tokens at a time, and keeps a few numbers per document in memory."""

    def __init__(self, tokens: BinaryIO, tokenizer: Tokenizer, search: NearDuplicateSearch):
        vocab = tokenizer.vocab
        num_ids = max(vocab.content_end, vocab.eos + 1, vocab.unk + 1)
        self.dtype = np.min_scalar_type(num_ids - 1)
        self.offsets, self.digests, self.name_ids = array("q", [0]), array("Q"), array("i")
        self.prompt_lengths, self.label_ids = array("i"), array("i")
        self.file_digests, self.text_digests, self.is_heldout = array("Q"), array("Q"), array("b")
        self.text_bytes, self.token_bytes = array("q"), array("q")
        self.search = search
        self.sampled_texts = 0
        self.changed_texts: list[list[str]] = []  # pairs: part of a sampled text, and what its tokens decode to
        self.names: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.unigram_counts = np.zeros(num_ids, np.int64)  # of content tokens
        self.num_bytes = 0
        self.pending_tokens = 0
        self._pending: list[np.ndarray] = []
        self._tokens = tokens
        self._tokens_hash = hashlib.blake2b(digest_size=8)
        self._tokenizer = tokenizer
        self._eos = np.array([vocab.eos], np.int32)

    def add(self, document: RawDocument) -> bool:
        """Adds one document and returns True, or returns False if its text has no tokens.

        The normalization of a SentencePiece model can remove all text of a document.

        Prompt and response are encoded separately. Encoded together, they could share a token at the boundary, and no
        prompt length would then be correct: part of the response would be unscored, or part of the prompt scored.
        """
        prompt, text = map(self._tokenizer.encode, (document.prompt, document.text))
        if not text.size:
            return False
        prompt_bytes, text_bytes = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        num_bytes = len(prompt_bytes) + len(text_bytes)
        length = prompt.size + text.size + 1
        self._pending += [prompt, text, self._eos]
        self.pending_tokens += length
        self.num_bytes += num_bytes
        self.text_bytes.append(num_bytes)
        spelled = self._tokenizer.num_bytes(prompt) + self._tokenizer.num_bytes(text)
        self.token_bytes.append(spelled - self._tokenizer.dummy_bytes * (1 + bool(prompt.size)))
        self.offsets.append(self.offsets[-1] + length)
        # All responses to one prompt have the same digest, and are on the same side of a split by document.
        self.digests.append(text_digest(prompt_bytes or text_bytes))
        self.file_digests.append(document.file_digest)
        self.is_heldout.append(document.is_heldout)
        self.text_digests.append(text_digest(prompt_bytes + text_bytes))
        self.search.add(prompt_bytes + b" " + text_bytes if prompt_bytes else text_bytes)
        self.name_ids.append(self.names.setdefault(document.name, len(self.names)))
        self.prompt_lengths.append(prompt.size)
        self.label_ids.append(self.labels.setdefault(document.label, len(self.labels)))
        if self.sampled_texts < _SAMPLED_TEXTS:
            self._sample(document.text[:_SAMPLED_CHARACTERS])
        return True

    @property
    def num_unknown(self) -> int:
        """The number of unknown tokens; 0 for a vocabulary without unk."""
        unk = self._tokenizer.vocab.unk
        return int(self.unigram_counts[unk]) if unk >= 0 else 0

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the store, by name."""
        names = (
            *("offsets", "digests", "file_digests", "text_digests", "name_ids", "prompt_lengths"),
            *("label_ids", "text_bytes", "token_bytes"),
        )
        duplicate_ids = first_of_each(np.asarray(self.text_digests))
        distinct = np.flatnonzero(duplicate_ids == np.arange(len(duplicate_ids)))
        return {
            **{name: np.asarray(getattr(self, name)) for name in names},
            "duplicate_ids": duplicate_ids,
            "near_duplicate_pairs": self.search.pairs(distinct) if self.search.complete else np.zeros((0, 2), np.int64),
            "unigram_counts": self.unigram_counts,
            "is_heldout": np.asarray(self.is_heldout, bool),
        }

    def _sample(self, text: str) -> None:
        """Encodes and decodes `text`, and remembers the first place where it changes, if it does."""
        self.sampled_texts += 1
        decoded = self._tokenizer.decode(self._tokenizer.encode(text))
        if decoded != text:
            differs = (i for i, pair in enumerate(zip(text, decoded, strict=False)) if pair[0] != pair[1])
            place = next(differs, min(len(text), len(decoded)))
            shown = slice(max(place - 10, 0), place + 10)
            self.changed_texts.append([text[shown], decoded[shown]])

    def flush(self) -> None:
        """Writes the pending tokens to tokens.bin."""
        ids = np.concatenate([np.zeros(0, np.int32), *self._pending])
        self.unigram_counts += np.bincount(ids, minlength=len(self.unigram_counts))
        self.unigram_counts[self._eos] = 0
        ids = ids.astype(self.dtype)
        self._tokens_hash.update(ids.tobytes())
        self._tokens.write(ids.tobytes())  # unlike tofile, says why it fails
        self._pending.clear()
        self.pending_tokens = 0

    def content_digest(self) -> str:
        """A hash of all that batches are made from, with the contents of the files but without their names."""
        digest = self._tokens_hash.copy()
        for column in (
            self.offsets,
            self.digests,
            self.prompt_lengths,
            self.label_ids,
            self.file_digests,
            self.is_heldout,
        ):
            digest.update(column.tobytes())
        digest.update(json.dumps(list(self.labels)).encode())
        return digest.hexdigest()


def _write_array(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file. Raises OSError with its reason, which np.save omits where the disk is full."""
    array = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


@contextmanager
def _progress_bar(source: Source, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that shows the number of bytes written so far."""
    console = Console(stderr=True)
    if not (enabled and console.is_interactive):
        yield lambda done: None
        return
    columns = [TextColumn("tokenizing"), BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("tokenizing", total=source.num_bytes)
        yield lambda done: bar.update(task, completed=min(done, source.num_bytes))
