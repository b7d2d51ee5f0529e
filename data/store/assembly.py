"""Assembles a token store (data/store/store.py) from the shards of a corpus (data/store/shard.py).

Memory does not grow with the number of documents: what needs all documents (copies, near-identical pairs) is sorted on
disk. The names of files and labels are in memory, as they are in the source and in the reader of the store.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.duplicates.near_pairs import MAX_DOCUMENTS
from data.sources.filters import FilterConfig, LengthCounts
from data.sources.raw import Skipped
from data.store.copies import (
    REMOVED_AS,
    IdsFile,
    copies_to_remove,
    first_of_each,
    near_pairs_of,
)
from data.store.shard import SAMPLED_TEXTS, Shard, num_ids, token_dtype
from data.tokenizers.tokenizer import Tokenizer
from files.array_files import ArrayFile, read_blocks
from files.verification import file_checksum, sealed

_PIECE_TOKENS = 1 << 20  # in memory at the same time
# Array of the store -> its dtype, and the column of the shards that it is.
_COLUMNS = {
    "digests": (np.uint64, "digest"),
    "text_digests": (np.uint64, "text_digest"),
    "file_digests": (np.uint64, "file_digest"),
    "text_bytes": (np.int64, "text_bytes"),
    "token_bytes": (np.int64, "token_bytes"),
    "prompt_lengths": (np.int32, "prompt_length"),
    "is_heldout": (np.bool_, "is_heldout"),
}
_TEXTS = {"names": "name_id", "labels": "label_id"}  # file of the store -> column of the shards


def assemble(
    folder: Path,
    shards: Sequence[Shard],
    filters: FilterConfig,
    tokenizer: Tokenizer,
    *,
    name: str,
    where: str,
    cut: str,
) -> None:
    """Writes the token store of `shards` into the empty `folder`.

    meta.json is written last and contains the sizes and checksums of the other files. Temporary files are in `folder`
    too, and are gone when the function returns.

    name: what the folder will be named. where, cut: those of the source.

    Raises ConfigError where no document besides those of data.heldout_path remains, and OSError where the folder cannot
    be written.
    """
    skipped, removed = _skipped_of(shards), _removed_of(shards)
    num_documents = sum(map(len, shards))
    if all(block["is_heldout"].all() for shard in shards for block in shard.documents()):
        raise ConfigError(_nothing_left(where, skipped, removed))
    is_searched = filters.remove_duplicates == "near" or num_documents <= MAX_DOCUMENTS
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sorting-") as temporary:
        sorting = Path(temporary)
        search = near_pairs_of(sorting, shards) if is_searched else None
        copies = copies_to_remove(sorting, shards, filters, search)
        with _Writer(folder, sorting, tokenizer) as writer:
            start = 0
            for shard in shards:
                writer.add(shard, None if copies is None else copies[start : start + len(shard)])
                start += len(shard)
        distinct, ids = _write_duplicate_ids(folder, sorting, writer)
        with ArrayFile(folder / "near_duplicate_pairs.npy", np.int64, (2,)) as pairs:
            for block in search.pairs(distinct) if search is not None else ():
                pairs.append(block if copies is None else np.searchsorted(ids, block))
    for file_name, texts in writer.texts.items():
        _write_json(folder / f"{file_name}.json", list(texts))
    with ArrayFile(folder / "unigram_counts.npy", np.int64) as array:
        array.append(writer.unigram_counts)
    lengths = LengthCounts()
    for shard in shards:
        lengths.merge(shard.meta.lengths.counts)
    samples = [sample for shard in shards for sample in shard.meta.samples][:SAMPLED_TEXTS]
    unk = tokenizer.vocab.unk
    meta = {
        "name": name,
        "dtype": token_dtype(tokenizer).name,
        "cut": cut,
        "num_documents": writer.num_documents,
        "num_tokens": writer.num_tokens,
        "num_bytes": writer.num_bytes,
        "num_unknown": int(writer.unigram_counts[unk]) if unk >= 0 else 0,
        "near_duplicates_searched": is_searched,
        "sampled_texts": len(samples),
        "changed_texts": [sample for sample in samples if sample],
        "content_digest": writer.content_digest(),
        "skipped_empty": skipped.empty,
        "skipped_files": skipped.files,
        "skipped_lines": skipped.lines,
        "first_skipped_line": skipped.first_line,
        "filters": filters.identity(),
        "removed": {key: {"documents": n, "bytes": b} for key, (n, b) in (removed | writer.removed).items()},
        "bytes_before_filters": lengths.counts,
        "bytes_of_documents": writer.bytes_of_documents.counts,
        "tokens_of_documents": writer.tokens_of_documents.counts,
        "file_sizes": {file.name: file.stat().st_size for file in sorted(folder.iterdir())},
        "checksums": {file.name: file_checksum(file) for file in sorted(folder.iterdir())},
    }
    _write_json(folder / "meta.json", sealed(meta))


class _Writer:
    """Appends the documents of shards to the files of a store that have a row for each token or document.

    Attributes:
      texts: file of the store -> its texts, whose index is in the documents.
      removed: copies that were not appended: what they are -> documents, bytes of text.
      bytes_of_documents, tokens_of_documents: how long the documents are.
    """

    def __init__(self, folder: Path, sorting: Path, tokenizer: Tokenizer):
        """sorting: a folder for temporary files."""
        self.num_documents = self.num_tokens = self.num_bytes = 0
        self.unigram_counts = np.zeros(num_ids(tokenizer), np.int64)
        self.texts: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        self.removed: dict[str, list[int]] = {}
        self.bytes_of_documents, self.tokens_of_documents = LengthCounts(), LengthCounts()
        self.ids = IdsFile(sorting / "ids.bin")  # of the documents among all documents of the shards
        self._num_read = 0
        self._folder = folder
        self._eos, self._dtype = tokenizer.vocab.eos, token_dtype(tokenizer)
        self._tokens = open(folder / "tokens.bin", "wb")  # noqa: SIM115  closed by __exit__
        self._tokens_hash = hashlib.blake2b(digest_size=8)
        dtypes = {name: dtype for name, (dtype, _) in _COLUMNS.items()}
        dtypes |= {"offsets": np.int64, "name_ids": np.int32, "label_ids": np.int32}
        self._arrays = {name: ArrayFile(folder / f"{name}.npy", dtype) for name, dtype in dtypes.items()}
        self._arrays["offsets"].append(np.zeros(1, np.int64))

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_) -> None:
        for file in (self._tokens, *self._arrays.values()):
            file.close()

    def add(self, shard: Shard, copies: np.ndarray | None) -> None:
        """Appends the documents of `shard` where `copies`, uint8 [documents], is 0; all documents for None.

        Raises OSError.
        """
        start = 0
        of_shard = {name: getattr(shard.meta, name) for name in _TEXTS}
        with open(shard.folder / "tokens.bin", "rb") as tokens:
            for block in shard.documents():
                reasons = np.zeros(len(block), np.uint8) if copies is None else copies[start : start + len(block)]
                start += len(block)
                self._count_removed(block, reasons)
                kept = reasons == 0
                self._copy_tokens(tokens, block["num_tokens"], kept)
                self.ids.append(self._num_read + np.flatnonzero(kept))
                self._num_read += len(block)
                self._append(block[kept], of_shard)
        self.unigram_counts[self._eos] = 0

    def content_digest(self) -> str:
        """A hash of all that batches are made from, with the contents of the files but without their names."""
        digest = self._tokens_hash.copy()
        for name in ("offsets", "digests", "prompt_lengths", "label_ids", "file_digests", "is_heldout"):
            for block in read_blocks(self._folder / f"{name}.npy"):
                digest.update(block.tobytes())
        digest.update(json.dumps(list(self.texts["labels"])).encode())
        return digest.hexdigest()

    def _count_removed(self, block: np.ndarray, reasons: np.ndarray) -> None:
        for reason, name in REMOVED_AS.items():
            if (chosen := reasons == reason).any():
                before = self.removed.get(name, [0, 0])
                self.removed[name] = [
                    before[0] + int(chosen.sum()),
                    before[1] + int(block["text_bytes"][chosen].sum()),
                ]

    def _append(self, rows: np.ndarray, of_shard: dict[str, list[str]]) -> None:
        for name, (_, column) in _COLUMNS.items():
            self._arrays[name].append(rows[column])
        for (name, column), array in zip(_TEXTS.items(), ("name_ids", "label_ids"), strict=True):
            self._arrays[array].append(_renumbered(rows[column], of_shard[name], self.texts[name]))
        self._arrays["offsets"].append(self.num_tokens + np.cumsum(rows["num_tokens"]))
        self.num_documents += len(rows)
        self.num_tokens += int(rows["num_tokens"].sum())
        self.num_bytes += int(rows["text_bytes"].sum())
        self.bytes_of_documents.add_all(rows["text_bytes"])
        self.tokens_of_documents.add_all(rows["num_tokens"] - 1)

    def _copy_tokens(self, source: Any, num_tokens: np.ndarray, kept: np.ndarray) -> None:
        """Copies the tokens of the next documents of a shard, `num_tokens` each, where `kept`."""
        bounds = np.flatnonzero(np.diff(kept)) + 1
        for run, copied in zip(np.split(num_tokens, bounds), kept[np.append(0, bounds)], strict=True):
            left = int(run.sum())
            if not copied:
                source.seek(left * self._dtype.itemsize, 1)
                continue
            while left:
                ids = np.fromfile(source, self._dtype, min(left, _PIECE_TOKENS))
                left -= len(ids)
                self.unigram_counts += np.bincount(ids, minlength=len(self.unigram_counts))
                self._tokens_hash.update(ids.data)
                self._tokens.write(ids.data)


def _write_duplicate_ids(folder: Path, sorting: Path, writer: _Writer) -> tuple[np.ndarray, np.ndarray]:
    """Writes duplicate_ids.npy. Returns two arrays of numbers among all documents of the shards.

    They are those of the first document of each text, and those of all documents of the store.
    """
    ids, distinct = writer.ids.array(), IdsFile(sorting / "distinct.bin")
    with ArrayFile(folder / "duplicate_ids.npy", np.int64) as array:
        for documents, firsts in first_of_each(sorting, _numbered(read_blocks(folder / "text_digests.npy"))):
            array.append(firsts)
            distinct.append(ids[documents[documents == firsts]])
    return distinct.array(), ids


def _numbered(blocks: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each block of values, and the numbers of its values from the first of all blocks on."""
    start = 0
    for block in blocks:
        yield block, np.arange(start, start + len(block))
        start += len(block)


def _renumbered(numbers: np.ndarray, texts: list[str], all_texts: dict[str, int]) -> np.ndarray:
    """Returns numbers of `all_texts` for those of `texts`, and adds what it lacks, in the order of `numbers`."""
    values, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    renumbered = np.zeros(len(values), np.int32)
    for k in np.argsort(first):
        renumbered[k] = all_texts.setdefault(texts[values[k]], len(all_texts))
    return renumbered[inverse]


def _skipped_of(shards: Sequence[Shard]) -> Skipped:
    total = Skipped()
    for skipped in (shard.meta.skipped for shard in shards):
        total.empty += skipped.empty
        total.files += skipped.files
        total.lines += skipped.lines
        total.first_line = total.first_line or skipped.first_line
    total.files = list(dict.fromkeys(total.files))  # parts of one file
    return total


def _removed_of(shards: Sequence[Shard]) -> dict[str, list[int]]:
    """Returns the documents and the bytes that each filter of documents removed."""
    total: dict[str, list[int]] = {}
    for name, (documents, num_bytes) in _items(shards):
        before = total.get(name, [0, 0])
        total[name] = [before[0] + documents, before[1] + num_bytes]
    return total


def _items(shards: Sequence[Shard]) -> Iterator[tuple[str, list[int]]]:
    for shard in shards:
        yield from shard.meta.removed.items()


def _nothing_left(where: str, skipped: Skipped, removed: dict[str, list[int]]) -> str:
    unreadable = f"{len(skipped.files)} unreadable files and {skipped.lines} unreadable lines or records"
    if removed:
        counts = ", ".join(f"{name}: {documents:,}" for name, (documents, _) in removed.items())
        return f"data.filters leaves no document of {where} (removed {counts}): change the filters"
    return (
        f"{where} contains no document with text (skipped {skipped.empty} empty documents, {unreadable}): "
        "name another corpus"
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
