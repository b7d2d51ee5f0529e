"""Shards: the documents of consecutive parts of a corpus, encoded, each in a folder that is complete or absent.

A token store is assembled from its shards in order (data/store/assembly.py), so it does not depend on where one shard ends
and the next begins, nor on who wrote them. Files of a shard's folder:

| file | dtype [shape] | contents |
|---|---|---|
| tokens.bin | the smallest unsigned dtype for all ids, [N] | all documents, concatenated, each with an EOS |
| documents.bin | DOCUMENT [documents] | the columns of the store for each document; names and labels are of the shard |
| signatures.bin | uint32 [documents, PERMUTATIONS] | signatures (data/duplicates/minhash.py); empty where nobody needs them |
| sets.bin | uint32 [N] | the sets of 5-grams that the signatures are of |
| meta.json | | what `ShardMeta` has, and the sizes and checksums of the other files |
"""

import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.duplicates.minhash import PERMUTATIONS, MinHasher
from data.sources import Part
from data.sources.config import CorpusConfig
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters, LengthCounts
from data.sources.raw import RawDocument, Skipped
from data.tokenizers.tokenizer import Tokenizer
from files.verification import file_checksum, read_meta, sealed, verify

SHARD_FORMAT = 1  # add 1 where the files of a shard, or what is in them, change
DOCUMENT = np.dtype(
    [
        ("num_tokens", np.int64),  # with EOS
        ("text_bytes", np.int64),
        ("token_bytes", np.int64),
        ("digest", np.uint64),
        ("text_digest", np.uint64),
        ("file_digest", np.uint64),
        ("num_shingles", np.int64),
        ("prompt_length", np.int32),
        ("name_id", np.int32),
        ("label_id", np.int32),
        ("is_heldout", np.bool_),
    ]
)
SAMPLED_TEXTS = 64  # texts that are decoded again
_SAMPLED_CHARACTERS = 2000  # the start of each that is used
_FLUSH_TOKENS, _FLUSH_DOCUMENTS = 1 << 20, 1 << 14  # in memory at the same time
_READ_DOCUMENTS = 1 << 14


@dataclasses.dataclass
class ShardMeta:
    """What meta.json of a shard has about its documents."""

    num_documents: int = 0
    num_bytes: int = 0  # of text
    has_signatures: bool = False
    names: list[str] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)
    samples: list[list[str]] = dataclasses.field(default_factory=list)  # see _Writer._sample
    skipped: Skipped = dataclasses.field(default_factory=Skipped)
    lengths: LengthCounts = dataclasses.field(default_factory=LengthCounts)  # before any filter
    removed: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # filter -> documents, bytes


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """Returns the smallest unsigned dtype for the ids in a store."""
    return np.min_scalar_type(num_ids(tokenizer) - 1)


def num_ids(tokenizer: Tokenizer) -> int:
    """Returns the number of ids that can be in a store: those of the model, EOS and unk."""
    vocab = tokenizer.vocab
    return max(vocab.content_end, vocab.eos + 1, vocab.unk + 1)


def write_shard(
    folder: Path,
    parts: Sequence[Part],
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    *,
    with_signatures: bool,
    note: Callable[[int, int], Any] = lambda num_bytes, num_documents: None,
) -> "Shard":
    """Writes the documents of `parts` to the shard `folder`, which gets its name when it is complete, and returns it.

    note: called now and then with the bytes of text and the documents that have been read since the last call.

    Raises ConfigError for what cannot be read, and OSError where the folder cannot be written.
    """
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    building.mkdir()
    try:
        writer = _Writer(building, corpus, tokenizer, with_signatures)
        with writer:
            for part in parts:
                try:
                    for document in part.read(writer.meta.skipped):
                        writer.add(document)
                        if writer.is_full:
                            note(*writer.flush())
                except Exception as error:
                    error.add_note(part.name)
                    raise
            note(*writer.flush())
        files = sorted(building.iterdir())
        meta = dataclasses.asdict(writer.meta)
        meta |= {"file_sizes": {file.name: file.stat().st_size for file in files}}
        meta |= {"checksums": {file.name: file_checksum(file) for file in files}}
        (building / "meta.json").write_text(json.dumps(sealed(meta)), encoding="utf-8")
        os.rename(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Shard(folder)


class Shard:
    """A shard on disk.

    Attributes:
      folder: of the shard.
      meta: about its documents.
    """

    def __init__(self, folder: Path):
        """Raises OSError or ValueError for a folder that is not a whole shard; `verify` reads the files too."""
        self.folder = folder
        fields = read_meta(folder)
        self._files = {name: fields[name] for name in ("file_sizes", "checksums")}
        for name, size in self._files["file_sizes"].items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} is not what was written")
        names = (field.name for field in dataclasses.fields(ShardMeta))
        self.meta = ShardMeta(**{name: fields[name] for name in names})
        self.meta.skipped = Skipped(**fields["skipped"])
        self.meta.lengths = LengthCounts(**fields["lengths"])

    def __len__(self) -> int:
        """Number of documents."""
        return self.meta.num_documents

    def verify(self) -> None:
        """Compares all files with their checksums. Raises ValueError, and OSError."""
        verify(self.folder, self._files)

    def documents(self) -> Iterator[np.ndarray]:
        """Yields the documents in order, DOCUMENT [n] each, a bounded number at a time."""
        with open(self.folder / "documents.bin", "rb") as file:
            while len(block := np.fromfile(file, DOCUMENT, _READ_DOCUMENTS)):
                yield block

    def signatures(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields what NearPairs.add takes, for the documents in order: signatures, sets and the sets' sizes."""
        with open(self.folder / "signatures.bin", "rb") as signatures, open(self.folder / "sets.bin", "rb") as sets:
            for block in self.documents():
                sizes = block["num_shingles"]
                for rows in np.split(sizes, np.flatnonzero(np.diff(np.cumsum(sizes) // _FLUSH_TOKENS)) + 1):
                    values = np.fromfile(signatures, np.uint32, len(rows) * PERMUTATIONS)
                    yield values, np.fromfile(sets, np.uint32, int(rows.sum())), rows


class _Writer:
    """Appends documents to the files of a shard, a million tokens at a time."""

    def __init__(self, folder: Path, corpus: CorpusConfig, tokenizer: Tokenizer, with_signatures: bool):
        self.meta = ShardMeta(has_signatures=with_signatures)
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer)
        self._filters = DocumentFilters(corpus.filters)
        self._hasher = MinHasher() if with_signatures else None
        self._files = {
            name: open(folder / f"{name}.bin", "wb")  # noqa: SIM115  closed by __exit__
            for name in ("tokens", "documents", "signatures", "sets")
        }
        self._eos = np.array([tokenizer.vocab.eos], np.int32)
        self._names: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._rows: list[tuple] = []
        self._pending: dict[str, list[np.ndarray]] = {"tokens": [], "signatures": [], "sets": []}
        self._pending_tokens = 0
        self._read_bytes = self._read_documents = 0  # since the last flush

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_) -> None:
        for file in self._files.values():
            file.close()

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush."""
        return self._pending_tokens >= _FLUSH_TOKENS or self._read_documents >= _FLUSH_DOCUMENTS

    def add(self, document: RawDocument) -> None:
        """Adds one document, unless a filter removes it or its text has no tokens.

        The normalization of a SentencePiece model can remove all text of a document. Held-out documents of
        data.heldout_path pass every filter.

        Prompt and response are encoded separately. Encoded together, they could share a token at the boundary, and no
        prompt length would then be correct: part of the response would be unscored, or part of the prompt scored.
        """
        prompt_bytes, text_bytes = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        num_bytes = len(prompt_bytes) + len(text_bytes)
        self._read_bytes += num_bytes
        self._read_documents += 1
        removed_by = self._filters.removed_by_text(document)
        if not removed_by:
            prompt, text = map(self._tokenizer.encode, (document.prompt, document.text))
            if not text.size:
                self.meta.skipped.empty += 1
                return
            removed_by = "" if document.is_heldout else self._filters.removed_by_tokens(prompt.size + text.size)
        self.meta.lengths.add(num_bytes)
        if removed_by:
            count = self.meta.removed.setdefault(removed_by, [0, 0])
            count[0] += 1
            count[1] += num_bytes
            return
        if len(self.meta.samples) < SAMPLED_TEXTS:
            self._sample(document.text[:_SAMPLED_CHARACTERS])
        num_shingles = 0
        if self._hasher is not None:
            signature, shingles = self._hasher.signature(
                prompt_bytes + b" " + text_bytes if prompt_bytes else text_bytes
            )
            self._pending["signatures"].append(signature)
            self._pending["sets"].append(shingles)
            num_shingles = len(shingles)
        spelled = self._tokenizer.num_bytes(prompt) + self._tokenizer.num_bytes(text)
        num_tokens = prompt.size + text.size + 1
        row = (
            num_tokens,
            num_bytes,
            spelled - self._tokenizer.dummy_bytes * (1 + bool(prompt.size)),
            # All responses to one prompt have the same digest, and are on the same side of a split by document.
            text_digest(prompt_bytes or text_bytes),
            text_digest(prompt_bytes + text_bytes),
            document.file_digest,
            num_shingles,
            prompt.size,
            self._names.setdefault(document.name, len(self._names)),
            self._labels.setdefault(document.label, len(self._labels)),
            document.is_heldout,
        )
        self._rows.append(row)  # in the order of DOCUMENT
        self._pending["tokens"] += [prompt, text, self._eos]
        self._pending_tokens += num_tokens
        self.meta.num_documents += 1
        self.meta.num_bytes += num_bytes

    def flush(self) -> tuple[int, int]:
        """Writes what is pending. Returns the bytes of text and the documents that were read since the last flush."""
        for name, dtype in (("tokens", self._dtype), ("signatures", np.uint32), ("sets", np.uint32)):
            values = np.concatenate([np.zeros(0, np.uint8), *self._pending[name]], dtype=dtype, casting="unsafe")
            self._files[name].write(values.tobytes())  # unlike tofile, says why it fails
            self._pending[name].clear()
        self._files["documents"].write(np.array(self._rows, DOCUMENT).tobytes())
        self._rows.clear()
        self._pending_tokens = 0
        self.meta.names, self.meta.labels = list(self._names), list(self._labels)
        read = self._read_bytes, self._read_documents
        self._read_bytes = self._read_documents = 0
        return read

    def _sample(self, text: str) -> None:
        """Encodes and decodes `text`, and remembers the first place where it changes, if it does.

        A sample is [part of the text, what its tokens decode to], or [] for a text that does not change.
        """
        decoded = self._tokenizer.decode(self._tokenizer.encode(text))
        changed: list[str] = []
        if decoded != text:
            differs = (i for i, pair in enumerate(zip(text, decoded, strict=False)) if pair[0] != pair[1])
            place = next(differs, min(len(text), len(decoded)))
            shown = slice(max(place - 10, 0), place + 10)
            changed = [text[shown], decoded[shown]]
        self.meta.samples.append(changed)
