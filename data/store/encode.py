"""Encodes the documents of a corpus in chunks: in this process, or in worker processes by concurrent.futures."""

import collections
import dataclasses
import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from command.program import end_with_parent
from contract.errors import ConfigError
from data.duplicates.near import MAX_DOCUMENTS, MinHasher, sharing_a_band
from data.sources.config import CorpusConfig
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters
from data.sources.source import RawDocument, Skipped, Source
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer

DOCUMENT = np.dtype(  # the arrays of the store that are columns of its documents, and what other arrays are made from
    [
        ("text_bytes", np.int64),
        ("token_bytes", np.int64),
        ("digests", np.uint64),
        ("text_digests", np.uint64),
        ("file_digests", np.uint64),
        ("prompt_lengths", np.int32),
        ("is_heldout", np.bool_),
        ("num_tokens", np.int64),  # with EOS
        ("num_shingles", np.int64),
        ("response_digests", np.uint64),  # 0 without a prompt
    ]
)
_CHUNK_DOCUMENTS, _CHUNK_CHARACTERS = 4096, 1 << 20
_IN_FLIGHT = 3  # chunks for each worker
_SMALL_BYTES = 16 << 20  # a corpus that is encoded faster than workers start


@dataclasses.dataclass
class Chunk:
    """Consecutive documents of a corpus, encoded. Documents that a filter removes are counted only.

    Attributes:
      num_read, bytes_read: documents and bytes of text before filters.
      documents: DOCUMENT [n].
      names, labels: of the n documents.
      tokens: [N], of the n documents one after another, each with an EOS.
      signatures, sets: of the n documents (data/duplicates/near.py): uint32 [n * PERMUTATIONS], uint32 [N]; empty where
        they are not needed.
      skipped_empty: documents without tokens.
      removed: filter -> documents, bytes of text.
    """

    num_read: int
    bytes_read: int
    documents: np.ndarray
    names: list[str]
    labels: list[str]
    tokens: np.ndarray
    signatures: np.ndarray
    sets: np.ndarray
    skipped_empty: int
    removed: dict[str, tuple[int, int]]


def num_ids(tokenizer: Tokenizer) -> int:
    """Returns the number of ids that can be in a store: those of the model, EOS and unk."""
    vocab = tokenizer.vocab
    return max(vocab.content_end, vocab.eos + 1, vocab.unk + 1)


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """Returns the smallest unsigned dtype for the ids in a store."""
    return np.min_scalar_type(num_ids(tokenizer) - 1)


def encode_chunk(corpus: CorpusConfig, tokenizer: Tokenizer, documents: list[RawDocument], first: int) -> Chunk:
    """Returns a chunk. first: the number of the first document; a corpus that is large is not searched for copies.

    Prompt and response are encoded separately. Encoded together, they could share a token at the boundary, and no
    prompt length would then be correct: part of the response would be unscored, or part of the prompt scored.
    """
    dtype, eos = token_dtype(tokenizer), np.array([tokenizer.vocab.eos])
    chunk = Chunk(len(documents), 0, np.zeros(0, DOCUMENT), [], [], eos, eos, eos, 0, {})
    filters, rows = DocumentFilters(corpus.filters), list[tuple]()
    is_searched = corpus.filters.remove_duplicates == "near" or first <= MAX_DOCUMENTS
    hasher = MinHasher() if is_searched else None
    tokens, signatures, sets = [], [], []
    for document in documents:
        prompt_bytes, text_bytes = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        num_bytes = len(prompt_bytes) + len(text_bytes)
        chunk.bytes_read += num_bytes
        removed_by = filters.removed_by_text(document)
        if not removed_by:
            prompt, text = map(tokenizer.encode, (document.prompt, document.text))
            if not text.size:  # the normalization of a SentencePiece model can remove all text of a document
                chunk.skipped_empty += 1
                continue
            removed_by = filters.removed_by_tokens(document, prompt.size + text.size)
        if removed_by:
            before = chunk.removed.get(removed_by, (0, 0))
            chunk.removed[removed_by] = before[0] + 1, before[1] + num_bytes
            continue
        shingles = np.zeros(0, np.uint32)
        if hasher is not None:
            signature, shingles = hasher.signature(prompt_bytes + b" " * bool(prompt_bytes) + text_bytes)
            signatures.append(signature)
            sets.append(shingles)
        spelled = tokenizer.num_bytes(prompt) + tokenizer.num_bytes(text)
        spelled -= tokenizer.dummy_bytes * (1 + bool(prompt.size))
        # All responses to one prompt have the same digest, and are on the same side of a split by document.
        digests = text_digest(prompt_bytes or text_bytes), text_digest(prompt_bytes + text_bytes), document.file_digest
        sizes = prompt.size, document.is_heldout, prompt.size + text.size + 1, len(shingles)
        response_digest = text_digest(text_bytes) if prompt_bytes else 0
        rows.append((num_bytes, spelled, *digests, *sizes, response_digest))  # in the order of DOCUMENT
        chunk.names.append(document.name)
        chunk.labels.append(document.label)
        tokens += [prompt, text, eos]
    chunk.documents, chunk.tokens = np.array(rows, DOCUMENT), _joined(tokens, dtype)
    chunk.signatures, chunk.sets = _joined(signatures, np.uint32), _joined(sets, np.uint32)
    return chunk


def _joined(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.uint8), *arrays], dtype=dtype, casting="unsafe")


def chunks_of(documents: Iterable[RawDocument]) -> Iterator[tuple[list[RawDocument], int]]:
    """Yields the documents in lists of bounded size, and the number of the first document of each."""
    chunk: list[RawDocument] = []
    first = num_characters = 0
    for document in documents:
        chunk.append(document)
        num_characters += len(document.prompt) + len(document.text)
        if len(chunk) == _CHUNK_DOCUMENTS or num_characters >= _CHUNK_CHARACTERS:
            yield chunk, first
            first, chunk, num_characters = first + len(chunk), [], 0
    if chunk:
        yield chunk, first


def encode_documents(
    source: Source, corpus: CorpusConfig, tokenizer: Tokenizer, skipped: Skipped, *, workers: int = 1
) -> Iterator[Chunk]:
    """`Engine.encode` in `workers` processes, or in this one."""
    chunks = chunks_of(source.documents(skipped))
    if workers == 1 or source.num_bytes < _SMALL_BYTES:
        yield from (encode_chunk(corpus, tokenizer, *chunk) for chunk in chunks)
        return
    # Not fork: a program with threads, such as this one, cannot be copied safely.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    pending: collections.deque[Future[Chunk]] = collections.deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(encode_in_worker, corpus, tokenizer.fingerprint, *chunk))
            if len(pending) == _IN_FLIGHT * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise ConfigError(
            "a worker process ended, as by the system where memory is too small: use fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Leaves Ctrl-C to the parent, which ends its workers, and ends this worker where the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


class Engine(NamedTuple):
    """Who does the work of data.prepare. The store does not depend on it.

    Attributes:
      encode: reads a corpus and yields its documents in order, encoded, and counts what is skipped. Raises ConfigError
        for what cannot be read, and for a worker that was killed.
      sharing_a_band: as in data/duplicates/near.py.
    """

    encode: Callable[[Source, CorpusConfig, Tokenizer, Skipped], Iterator[Chunk]] = encode_documents
    sharing_a_band: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = sharing_a_band


THIS_PROCESS = Engine()


def encode_in_worker(corpus: CorpusConfig, fingerprint: str, documents: list[RawDocument], first: int) -> Chunk:
    """`encode_chunk` in a worker. Raises ConfigError where its tokenizer is not the one with `fingerprint`."""
    return encode_chunk(corpus, _worker_tokenizer(corpus, fingerprint), documents, first)


@functools.lru_cache(maxsize=1)
def _worker_tokenizer(corpus: CorpusConfig, fingerprint: str) -> Tokenizer:
    tokenizer = make_tokenizer(corpus)
    if tokenizer.fingerprint != fingerprint:
        raise ConfigError(f"data.tokenizer={corpus.tokenizer!r} has changed: run the same command again")
    return tokenizer
