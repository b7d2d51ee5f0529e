"""Writes a token store (data/store/store.py): appends encoded documents in order, and removes copies.

A store does not depend on who has encoded its documents: it is the same file by file.
"""

import collections
import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.rng import GOLDEN, mix64
from data.duplicates.near import JACCARD, MAX_DOCUMENTS, PERMUTATIONS, Signatures, near_pairs
from data.sources.config import CorpusConfig
from data.sources.filters import FilterConfig
from data.sources.source import Skipped, Source
from data.store.checksums import file_checksum, sealed
from data.store.encode import DOCUMENT, THIS_PROCESS, Chunk, Engine, num_ids, token_dtype
from data.tokenizers.tokenizer import Tokenizer

_STALE_SECONDS = 24 * 3600
_LINE_SECONDS = 10.0  # between two lines of progress
_PIECE_TOKENS = 1 << 20  # in memory at the same time
_REMOVED_AS = {1: "exact_duplicates", 2: "near_duplicates"}


def write_store(
    folder: Path,
    source: Source,
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    engine: Engine = THIS_PROCESS,
    *,
    progress: bool = False,
) -> None:
    """Writes the token store `folder`, which gets its name when it is complete.

    Temporary files are in a folder next to it, and are gone when the function returns. Any number of processes may
    write the same store at the same time: the first to finish gives its own store the name.

    progress: whether to print a line to standard error every ten seconds.

    Raises ConfigError for a corpus that cannot be read, and where no document besides those of data.heldout_path
    remains; OSError where the folder cannot be written.
    """
    _remove_stale_work(folder)
    work = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    work.mkdir()
    try:
        with contextlib.closing(_Writer(work, tokenizer)) as writer:
            chunks = engine.encode(source, corpus, tokenizer, writer.skipped)
            for chunk in _with_progress(chunks, source.num_bytes) if progress else chunks:
                writer.append(chunk)
            writer.close()
            store = writer.finish(folder.name, source, corpus.filters, engine)
        try:
            os.rename(store, folder)
        except OSError:
            if not folder.exists():
                raise
            # Another process finished first, and its store is equal to this one.
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _with_progress(chunks: Iterable[Chunk], total_bytes: int) -> Iterator[Chunk]:
    """Yields the chunks, and prints every ten seconds how much has been read. total_bytes: approximate."""
    began = last_line = time.monotonic()
    num_bytes = num_documents = 0
    for chunk in chunks:
        yield chunk
        num_bytes, num_documents = num_bytes + chunk.bytes_read, num_documents + chunk.num_read
        if time.monotonic() - last_line > _LINE_SECONDS:
            last_line = time.monotonic()
            read, total, speed = num_bytes / 1e6, total_bytes / 1e6, num_bytes / 1e6 / (last_line - began)
            line = f"prepare: {read:,.1f} of {total:,.1f} MB, {num_documents:,} documents, {speed:,.1f} MB/s"
            print(line, file=sys.stderr, flush=True)


def _remove_stale_work(folder: Path) -> None:
    """Removes the folders of killed writers of the store `folder`: those that nobody has written to for a day."""
    for work in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(FileNotFoundError):  # the writer may be finishing
            newest = max(path.stat().st_mtime for path in [work, *work.rglob("*")])
            if newest < time.time() - _STALE_SECONDS:
                shutil.rmtree(work, ignore_errors=True)


class _Writer:
    """Appends chunks to temporary files, and makes a store of them.

    In memory are the columns of the documents, some hundred bytes for each; tokens, signatures and sets of 5-grams are
    on disk.
    """

    def __init__(self, work: Path, tokenizer: Tokenizer):
        self.skipped = Skipped()
        self._work, self._tokenizer = work, tokenizer
        self._files = {
            name: open(work / name, "wb")  # noqa: SIM115  closed by `close`
            for name in ("tokens", "signatures", "sets")
        }
        self._documents: list[np.ndarray] = []
        self._names: list[str] = []
        self._labels: list[str] = []
        self._removed: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2, np.int64))
        self._num_read = 0

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def append(self, chunk: Chunk) -> None:
        """Appends the next documents. Raises OSError."""
        for name, array in (("tokens", chunk.tokens), ("signatures", chunk.signatures), ("sets", chunk.sets)):
            self._files[name].write(array.tobytes())  # unlike tofile, says why it fails
        self._documents.append(chunk.documents)
        self._names += map(sys.intern, chunk.names)
        self._labels += map(sys.intern, chunk.labels)
        self._num_read += chunk.num_read
        self.skipped.empty += chunk.skipped_empty
        for name, counts in chunk.removed.items():
            self._removed[name] += counts

    def finish(self, name: str, source: Source, filters: FilterConfig, engine: Engine) -> Path:
        """Writes the store to a new folder, which is returned. meta.json is written last.

        name: of the store. source, filters: of the corpus. Raises ConfigError where no document of it remains, OSError.
        """
        documents = np.concatenate(self._documents) if self._documents else np.zeros(0, DOCUMENT)
        if documents["is_heldout"].all():
            raise ConfigError(self._nothing_left(source.where))
        is_searched = filters.remove_duplicates == "near" or self._num_read <= MAX_DOCUMENTS
        signatures = self._signatures(documents["num_shingles"]) if is_searched else None
        copies = _copies(documents, _numbered(self._labels)[0], filters, signatures, engine)
        for reason, kind in _REMOVED_AS.items():
            if (chosen := copies == reason).any():
                self._removed[kind] += chosen.sum(), documents["text_bytes"][chosen].sum()
        kept = np.flatnonzero(copies == 0)
        arrays = {name: documents[name][kept] for name in DOCUMENT.names[:-3]}
        arrays["offsets"] = np.append(0, np.cumsum(documents["num_tokens"][kept]))
        arrays["name_ids"], names = _numbered(self._names[d] for d in kept.tolist())
        arrays["label_ids"], labels = _numbered(self._labels[d] for d in kept.tolist())
        arrays["duplicate_ids"] = _first_of_each(arrays["text_digests"])
        arrays["near_duplicate_pairs"] = np.zeros((0, 2), np.int64)
        if signatures is not None:
            compared = engine.sharing_a_band(signatures.values, kept[np.unique(arrays["duplicate_ids"])], JACCARD)
            arrays["near_duplicate_pairs"] = np.searchsorted(kept, near_pairs(signatures, compared))
        store = self._work / "store"
        store.mkdir()
        digest = hashlib.blake2b(digest_size=8)
        arrays["unigram_counts"] = self._write_tokens(store, documents["num_tokens"], copies == 0, digest)
        for array in ("offsets", "digests", "prompt_lengths", "label_ids", "file_digests", "is_heldout"):
            digest.update(arrays[array].tobytes())
        digest.update(json.dumps(labels).encode())
        for array, values in arrays.items():
            contents = io.BytesIO()
            np.save(contents, values)
            (store / f"{array}.npy").write_bytes(contents.getbuffer())  # unlike np.save, says why it fails
        _write_json(store / "names.json", names)
        _write_json(store / "labels.json", labels)
        files = sorted(store.iterdir())
        meta = {
            "name": name,
            "cut": source.cut,
            "near_duplicates_searched": is_searched,
            "content_digest": digest.hexdigest(),
            "filters": filters.identity(),
            "dtype": token_dtype(self._tokenizer).name,
            "num_documents": len(kept),
            "num_tokens": int(arrays["offsets"][-1]),
            "num_bytes": int(arrays["text_bytes"].sum()),
            "num_unknown": int(arrays["unigram_counts"][unk]) if (unk := self._tokenizer.vocab.unk) >= 0 else 0,
            "skipped_empty": self.skipped.empty,
            "skipped_files": self.skipped.files,
            "skipped_lines": self.skipped.lines,
            "first_skipped_line": self.skipped.first_line,
            "removed": {key: {"documents": int(n), "bytes": int(size)} for key, (n, size) in self._removed.items()},
            "file_sizes": {file.name: file.stat().st_size for file in files},
            "checksums": {file.name: file_checksum(file) for file in files},
        }
        _write_json(store / "meta.json", sealed(meta))
        return store

    def _signatures(self, num_shingles: np.ndarray) -> Signatures:
        """Returns the signatures of all documents, memory maps of the files."""
        values, sets = (np.memmap(self._work / name, np.uint32, "r") for name in ("signatures", "sets"))
        return Signatures(values.reshape(-1, PERMUTATIONS), sets, np.append(0, np.cumsum(num_shingles)))

    def _write_tokens(self, store: Path, num_tokens: np.ndarray, kept: np.ndarray, digest: Any) -> np.ndarray:
        """Writes the tokens of the documents that are `kept`, bool [documents], and adds them to `digest`.

        Returns how often each id occurs, without EOS, int64 [ids].
        """
        counts = np.zeros(num_ids(self._tokenizer), np.int64)
        tokens = np.memmap(self._work / "tokens", token_dtype(self._tokenizer), "r")
        bounds = np.append(0, np.cumsum(num_tokens))
        runs = np.flatnonzero(np.diff(np.concatenate([[0], kept, [0]]))).reshape(-1, 2)  # of kept documents
        with open(store / "tokens.bin", "wb") as file:
            for start, end in bounds[runs].tolist():
                for begin in range(start, end, _PIECE_TOKENS):
                    ids = tokens[begin : min(begin + _PIECE_TOKENS, end)]
                    counts += np.bincount(ids, minlength=len(counts))
                    digest.update(ids.data)
                    file.write(ids.data)
        counts[self._tokenizer.vocab.eos] = 0
        return counts

    def _nothing_left(self, where: str) -> str:
        if self._removed:
            counts = ", ".join(f"{name}: {documents:,}" for name, (documents, _) in self._removed.items())
            return f"data.filters leaves no document of {where} (removed {counts}): change the filters"
        return f"{where} contains no document with text ({self.skipped}): name another corpus"


def _copies(
    documents: np.ndarray, label_ids: np.ndarray, filters: FilterConfig, signatures: Signatures | None, engine: Engine
) -> np.ndarray:
    """Returns why each of `documents` is to be removed: uint8 [n], a key of _REMOVED_AS, or 0 for one that stays.

    Documents are identical if they have the same prompt, text and label; the first of each stays, in the order of the
    corpus. Near-identical ones are compared as prompt, space and text, without labels; the responses to prompts must
    also be identical, because all questions about one passage are near-identical. With remove_duplicates="near", a
    document is removed if it is found near-identical to an earlier one that stays, so that each removed document has a
    copy in the store. The corpus' own held-out documents (data.heldout_path) stay, and remove no others.
    """
    removed = np.zeros(len(documents), np.uint8)
    if filters.remove_duplicates == "none":
        return removed
    compared = np.flatnonzero(~documents["is_heldout"])
    keys = np.zeros(len(documents), np.uint64)
    # "digests" are those of the prompt, where there is one, and so separate the prompt from the text.
    for part in (documents["text_digests"], documents["digests"], documents["prompt_lengths"] > 0, label_ids):
        keys = mix64(keys * GOLDEN ^ part.astype(np.uint64))
    is_first = _first_of_each(keys[compared]) == np.arange(len(compared))
    removed[compared[~is_first]] = 1
    if signatures is not None and filters.remove_duplicates == "near":
        compared = engine.sharing_a_band(signatures.values, compared[is_first], filters.jaccard)
        pairs = near_pairs(signatures, compared, filters.jaccard, most=1, groups=documents["response_digests"])
        removed[pairs[:, 1]] = 2
    return removed


def _first_of_each(values: np.ndarray) -> np.ndarray:
    """Returns the number of the first value that is equal to each of `values`, int64 [n]."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]


def _numbered(texts: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Returns the number of each text, int32 [n], and the distinct texts in the order of their first occurrence."""
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return ids, list(numbers)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
