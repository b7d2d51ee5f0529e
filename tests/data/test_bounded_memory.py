"""The memory of a build does not grow with the number of documents."""

import dataclasses
import random
import tracemalloc

from data.duplicates import external_sort, near_pairs
from data.sources.filters import OFF
from data.store import assembly, shard
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from files import array_files
from tests.data.corpus import corpus_config

DOCUMENTS = 100


def peak_of(folder, num_documents, filters):
    """Returns the most bytes that Python and NumPy have while a store of so many lines is built."""
    (folder / "text").mkdir(parents=True)
    chance = random.Random(num_documents)
    lines = [" ".join(str(chance.randint(0, 10**6)) for _ in range(12)) for _ in range(num_documents)]
    (folder / "text" / "lines.txt").write_text("\n".join(lines))
    corpus = corpus_config(folder, document_per="line", filters=filters)
    tokenizer = make_tokenizer(corpus)
    tracemalloc.start()
    try:
        store = open_or_build(corpus, tokenizer, progress=False)
        assert len(store) == num_documents
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_documents(tmp_path, monkeypatch):
    for owner in (external_sort, near_pairs):
        monkeypatch.setattr(owner, "RUN_ROWS", 90)
    for name in ("_CHUNK", "_SLICE", "_BLOCK"):
        monkeypatch.setattr(near_pairs, name, 100)
    for name in ("_FLUSH_DOCUMENTS", "_READ_DOCUMENTS"):
        monkeypatch.setattr(shard, name, 50)
    monkeypatch.setattr(shard, "_FLUSH_TOKENS", 5000)
    monkeypatch.setattr(assembly, "_PIECE_TOKENS", 5000)
    monkeypatch.setattr(array_files, "_READ_ROWS", 100)
    filters = dataclasses.replace(OFF, remove_duplicates="near")
    peak_of(tmp_path / "imports", 10, filters)
    once, often = (peak_of(tmp_path / str(n), n, filters) for n in (DOCUMENTS, 8 * DOCUMENTS))
    assert often < 1.3 * once, (once, often)
