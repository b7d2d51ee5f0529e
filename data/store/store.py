"""The token store: a corpus as flat token ids on disk, written once and read through memory maps.

A store is a folder, named by a fingerprint of source, tokenizer and options:

| file | dtype [shape] | contents |
|---|---|---|
| tokens.bin | the smallest unsigned dtype for all ids, [N] | all documents, concatenated, each with an EOS |
| offsets.npy | int64 [documents + 1] | document d is tokens[offsets[d] : offsets[d + 1]], its EOS last |
| digests.npy | uint64 [documents] | BLAKE2b of the document's prompt in UTF-8, or of its text if there is no prompt |
| text_digests.npy | uint64 [documents] | BLAKE2b of the document's prompt and text |
| duplicate_ids.npy | int64 [documents] | the first document with the same prompt and text, or itself |
| near_duplicate_pairs.npy | int64 [pairs, 2] | near-identical, the first of each text: data/duplicates/near.py |
| text_bytes.npy, token_bytes.npy | int64 [documents] | UTF-8 bytes of the text; of its tokens without dummy bytes |
| name_ids.npy, names.json | int32 [documents], strings | the file or dataset that each document is from |
| file_digests.npy | uint64 [documents] | BLAKE2b of the text that the document is cut from: a file, a TFDS example |
| is_heldout.npy | bool [documents] | whether the document is of data.heldout_path |
| prompt_lengths.npy | int32 [documents] | the number of leading tokens that are the prompt; 0 for no prompt |
| label_ids.npy, labels.json | int32 [documents], strings | the class of each document, "" for none |
| unigram_counts.npy | int64 [ids] | how often each id occurs in the corpus; EOS is not counted |
| meta.json | | the folder's name, how documents are cut, counts, what was skipped, hashes, sizes and checksums |
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cluster.cluster import ALONE, Exchanges
from command.program import print_note
from contract.errors import ConfigError
from data.sources import Source, open_source
from data.sources.config import CorpusConfig
from data.sources.files import local_cache
from data.store.checksums import TOKENS, check_files, damaged, read_meta, remember_verified, verify, without_tokens
from data.store.encode import THIS_PROCESS, Engine
from data.store.ranges import open_tokens
from data.store.write import write_store
from data.tokenizers.tokenizer import Tokenizer
from files.paths import check_access, check_writable, copy_file, in_bucket, is_file, read_bytes, reason

_FORMAT = 9


class TokenStore:
    """A corpus on disk. Its arrays are memory maps, which any number of threads and processes may read.

    Attributes:
      folder: the store's folder.
      meta: the contents of meta.json.
      tokens, offsets, digests, duplicate_ids, near_duplicate_pairs, text_bytes, token_bytes, name_ids,
        prompt_lengths, label_ids, unigram_counts, file_digests, text_digests, is_heldout: as in the module's table.
    """

    def __init__(self, folder: Path, all_gather: Callable[[Any], list[Any]] = ALONE.all_gather, whole: bool = True):
        """Raises ConfigError where a file is missing or is not what was written: see data/store/checksums.py.

        all_gather: of the processes that open the store. whole: False for a folder without tokens.bin; the caller then
        sets `tokens`.
        """
        self.folder = folder
        try:
            self.meta = read_meta(folder)
            check_files(folder, self.meta if whole else without_tokens(self.meta), all_gather)
            # Plain arrays over the maps: indexing an np.memmap is several times slower.
            self.tokens = np.asarray(np.memmap(folder / TOKENS, np.dtype(self.meta["dtype"]), "r")) if whole else None
            for path in folder.glob("[!.]*.npy"):
                setattr(self, path.stem, np.asarray(np.load(path, mmap_mode="r")))
        except (FileNotFoundError, ValueError) as error:
            raise damaged(folder, error) from None
        except OSError as error:
            raise ConfigError(f"token store {folder} cannot be read: {reason(error)}") from None

    @functools.cached_property
    def names(self) -> list[str]:
        """The files or datasets that `name_ids` indexes."""
        return json.loads((self.folder / "names.json").read_text(encoding="utf-8"))

    @functools.cached_property
    def labels(self) -> list[str]:
        """The classes that `label_ids` indexes."""
        return json.loads((self.folder / "labels.json").read_text(encoding="utf-8"))

    @property
    def content_digest(self) -> str:
        """A hash of tokens, documents, prompts and labels. Equal texts in other folders or on other hosts have it too.

        `folder.name` has the paths and modification times of the files instead.
        """
        return self.meta["content_digest"]

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.digests)

    def verify(self) -> int:
        """Reads all files, and returns the bytes read. Raises ConfigError for a file that is not what was written."""
        try:
            verify(self.folder, self.meta)
        except (OSError, ValueError) as error:
            raise damaged(self.folder, error) from None
        remember_verified(self.folder, self.meta)
        return sum(self.meta["file_sizes"].values())

    def unigram_entropy(self) -> float:
        """The entropy, in nats, of the token frequencies without EOS: the lowest loss of a model without context."""
        shares = self.unigram_counts[self.unigram_counts > 0] / self.unigram_counts.sum()
        return float(-(shares * np.log(shares)).sum())

    @property
    def unknown_fraction(self) -> float:
        """The share of unknown tokens (unk) among the tokens without EOS."""
        return float(self.meta["num_unknown"] / self.unigram_counts.sum())

    def bytes_covered(self, index: np.ndarray | None = None) -> float:
        """The share of the UTF-8 bytes of documents `index`, int64 [n], or of all, that their tokens spell.

        Below 1 where tokens are unknown or the tokenizer's normalization removes characters. Characters that the
        tokenizer adds to one document do not make up for those that it removes from another.
        """
        chosen = slice(None) if index is None else index
        text_bytes, token_bytes = self.text_bytes[chosen], self.token_bytes[chosen]
        return int(np.minimum(text_bytes, token_bytes).sum()) / int(text_bytes.sum())

    def in_text(self, index: np.ndarray) -> np.ndarray:
        """float64 [n]: the share of the bytes of the tokens of documents `index`, int64 [n], that are bytes of text.

        Below 1 where the tokenizer's normalization makes a document longer, as NFKC does with ligatures. Without dummy
        bytes.
        """
        return np.minimum(self.text_bytes[index] / np.maximum(self.token_bytes[index], 1), 1.0)


def open_or_build(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    *,
    progress: bool = True,
    new_store_dir: str | None = None,
    engine: Engine = THIS_PROCESS,
    exchanges: Exchanges = ALONE,
    by_range: bool = False,
) -> TokenStore:
    """Returns the token store of a corpus in `data.cache_dir`, built first if it does not exist.

    Any number of processes may call this function at the same time. Each process that finds no store builds one under a
    temporary name, and the first to finish renames its own in one step. A store is therefore complete or absent.

    Where `data.cache_dir` is in a bucket, the store is a copy on this machine, and one that is built is copied to the
    bucket: the same files under the same names, meta.json last, so that a store without it is incomplete.

    Args:
      corpus: the config of the corpus.
      tokenizer: that of the corpus.
      progress: whether to print a line to standard error every ten seconds while building.
      new_store_dir: another folder to look into and to build in, for a config that somebody else may have written.
      engine: reads and encodes the documents of a store that is built.
      exchanges: of the processes that call this function for the same corpus; it makes three. Process 0 builds the
        store, the others find it, and they divide the verification of a large one.
      by_range: whether to read the tokens of a store in a bucket by range, without a copy of them on this machine
        (data/store/ranges.py), unless there is one.

    Raises ConfigError for a corpus that is missing, empty or unreadable, a cache_dir that cannot be written, and a
    damaged store.
    """
    if not corpus.cache_dir:
        raise ConfigError("data.cache_dir='' must be a folder, such as '~/.cache/cloze'")
    check_access(corpus.cache_dir, f"data.cache_dir={corpus.cache_dir!r}")
    source = open_source(corpus if new_store_dir is None else dataclasses.replace(corpus, cache_dir=new_store_dir))
    name = f"{corpus.source}-{_fingerprint(source, corpus, tokenizer)}"
    try:
        if new_store_dir is not None and not _has_store(corpus.cache_dir, name):
            corpus = dataclasses.replace(corpus, cache_dir=new_store_dir)
        folder = local_cache(corpus.cache_dir) / name

        def make() -> None:
            if not folder.exists():
                write = functools.partial(write_store, folder, source, corpus, tokenizer, engine, progress=progress)
                _make_store(folder, corpus.cache_dir, write, by_range)

        exchanges.in_turn(make)
    except OSError as error:
        raise ConfigError(
            f"data.cache_dir={corpus.cache_dir!r} cannot be written ({reason(error)}): set another folder"
        ) from None
    records = new_store_dir in (None, corpus.cache_dir)  # in the bucket, unless somebody else wrote the config
    if folder.exists():
        store = TokenStore(folder, exchanges.all_gather)
    else:  # the tokens are read from the bucket, and the other files are on this machine
        store = TokenStore(_columns_of(folder), whole=False)
        store.tokens = open_tokens(f"{corpus.cache_dir.rstrip('/')}/{name}", store.meta, exchanges.all_gather, records)
    if corpus.heldout_path and not store.is_heldout[-1]:
        raise ConfigError(
            f"data.heldout_path={corpus.heldout_path!r} has no document with text: name other text, or set it to '' to "
            "hold out documents of data.path"
        )
    if store.meta["name"] != name:
        raise ConfigError(
            f"token store {folder} contains another corpus, the store {store.meta['name']}, which was renamed: "
            "delete that folder, and the next run rebuilds it"
        )
    return store


def _make_store(folder: Path, cache_dir: str, write: Callable[[], None], by_range: bool) -> None:
    """Makes the store `folder` by `write`, unless it is there. A cache_dir in a bucket gets a copy, or has one."""
    shared = f"{cache_dir.rstrip('/')}/{folder.name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if _is_found(_columns_of(folder) if by_range else folder, shared, by_range):
        return
    check_writable(cache_dir, f"data.cache_dir={cache_dir!r}")
    write()
    remember_verified(folder, read_meta(folder))
    if in_bucket(shared):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == "meta.json"):
            copy_file(path, f"{shared}/{path.name}")
        print_note(f"token store {folder}: copied to {shared}")


def _is_found(folder: Path, shared: str, by_range: bool) -> bool:
    """Returns whether the store is there, after a copy from the bucket if `shared` is in one.

    by_range: the copy is of all files but tokens.bin. One of another store than that in the bucket is deleted.
    """
    if by_range and in_bucket(shared):
        _remove_another(folder, shared)
    if not folder.exists() and in_bucket(shared) and is_file(f"{shared}/meta.json"):
        _download(shared, folder, by_range)
    return folder.exists()


def _remove_another(folder: Path, shared: str) -> None:
    """Deletes the copied files `folder` of a store that is not, or no longer, the one at `shared` in a bucket."""
    if is_file(folder / "meta.json"):
        with contextlib.suppress(FileNotFoundError):
            if read_bytes(f"{shared}/meta.json") == (folder / "meta.json").read_bytes():
                return
        shutil.rmtree(folder)


def _columns_of(folder: Path) -> Path:
    """Returns the folder for the files of the store `folder` but tokens.bin."""
    return folder.with_name(f"{folder.name}.columns")


def _has_store(cache_dir: str, name: str) -> bool:
    """Returns whether the store `name` is in `data.cache_dir`."""
    local = local_cache(cache_dir) / name
    return local.exists() or (in_bucket(cache_dir) and is_file(f"{cache_dir}/{name}/meta.json"))


def _download(address: str, folder: Path, by_range: bool) -> None:
    """Copies the store at `address` in a bucket to `folder`, which gets its name once all files have their checksums.

    by_range: leaves out tokens.bin.

    Raises ConfigError for a damaged store, and OSError.
    """
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    building.mkdir()
    try:
        copy_file(f"{address}/meta.json", building / "meta.json")
        meta = without_tokens(read_meta(building)) if by_range else read_meta(building)
        for name in meta["file_sizes"]:
            copy_file(f"{address}/{name}", building / name)
        verify(building, meta)
        try:
            os.rename(building, folder)
            remember_verified(folder, meta)
        except OSError:
            if not folder.exists():  # or another process of this machine has finished first
                raise
    except (FileNotFoundError, ValueError) as error:
        raise damaged(address, error) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    what = f"{'all but tokens.bin ' * by_range}copied to {folder}"
    print_note(f"token store {address}: {what} ({sum(meta['file_sizes'].values()) / 1e6:,.1f} MB), checksums verified")


def _fingerprint(source: Source, corpus: CorpusConfig, tokenizer: Tokenizer) -> str:
    contents = [_FORMAT, source.identity, corpus.document_per, corpus.on_unreadable, tokenizer.fingerprint]
    contents += [corpus.text_key, corpus.filters.identity()]
    return hashlib.blake2b(json.dumps(contents, sort_keys=True).encode(), digest_size=8).hexdigest()
