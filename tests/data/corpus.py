"""Small corpora on disk for the tests of data/."""

from types import SimpleNamespace

import numpy as np

from data.documents import Documents
from data.store import TokenStore, open_or_build
from data.tokenizer import make_tokenizer


def data_fields(tmp_path, **changes):
    """config.data as it is for a text corpus in tmp_path/text, with a cache in tmp_path/cache."""
    fields = {
        "source": "text",
        "path": str(tmp_path / "text"),
        "document_per": "file",
        "on_unreadable": "error",
        "tokenizer": "byte",
        "num_sentinels": 10,
        "mode_tokens": ("[R]", "[S]", "[X]"),
        "cache_dir": str(tmp_path / "cache"),
    }
    return SimpleNamespace(**(fields | changes))


def write_texts(tmp_path, texts) -> None:
    """One file a text, named 000.txt, 001.txt, ..."""
    (tmp_path / "text").mkdir(exist_ok=True)
    for i, text in enumerate(texts):
        (tmp_path / "text" / f"{i:03}.txt").write_bytes(text.encode())


def store_of(tmp_path, texts, **changes) -> TokenStore:
    """A token store of one document a text."""
    write_texts(tmp_path, texts)
    fields = data_fields(tmp_path, **changes)
    return open_or_build(fields, make_tokenizer(fields))


def all_documents(store: TokenStore) -> Documents:
    """Every document of a store, in its order on disk."""
    return Documents(store, np.arange(len(store)), "training")
