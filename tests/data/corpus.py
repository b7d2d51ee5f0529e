"""Small corpora on disk, and batches of them, for the tests of data/."""

import numpy as np

from contract.windows import BatchSpec
from data.sources import open_source
from data.sources.config import CorpusConfig
from data.sources.filters import OFF
from data.sources.source import RawDocument, Skipped
from data.store.store import TokenStore, open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.batches import Batches, batches
from data.windows.documents import Documents
from data.windows.windowing import WindowReader, gather


def corpus_config(tmp_path, **changes) -> CorpusConfig:
    """The config of a text corpus in tmp_path/text, with a cache in tmp_path/cache."""
    fields = {
        "source": "text",
        "path": str(tmp_path / "text"),
        "heldout_path": "",
        "document_per": "file",
        "text_key": "text",
        "on_unreadable": "error",
        "tokenizer": "byte",
        "num_sentinels": 10,
        "mode_tokens": ("[R]", "[S]", "[X]"),
        "append_special_tokens": True,
        "decoder_start_token": "pad",
        "cache_dir": str(tmp_path / "cache"),
        "filters": OFF,
    }
    return CorpusConfig(**(fields | changes))


def write_texts(tmp_path, texts) -> None:
    """Writes one file per text, named 000.txt, 001.txt, ..."""
    (tmp_path / "text").mkdir(exist_ok=True, parents=True)
    for i, text in enumerate(texts):
        (tmp_path / "text" / f"{i:03}.txt").write_bytes(text.encode())


def read(corpus) -> tuple[list[RawDocument], Skipped]:
    """The documents of a corpus, and what was skipped."""
    skipped = Skipped()
    return list(open_source(corpus).documents(skipped)), skipped


def opened(corpus, **options) -> TokenStore:
    """The token store of a corpus."""
    return open_or_build(corpus, make_tokenizer(corpus), **options)


def store_of(tmp_path, texts, **changes) -> TokenStore:
    """A token store of one document per text."""
    write_texts(tmp_path, texts)
    return opened(corpus_config(tmp_path, **changes))


def all_documents(store: TokenStore) -> Documents:
    """Every document of a store, in its order on disk."""
    return Documents(store, np.arange(len(store)), "training")


def examples_of_window(reader: WindowReader, index: int, epoch: int = 0) -> list[tuple[int, ...]]:
    """The token ids of each example of one window."""
    slices = reader.slices(np.array([epoch]), np.array([index]))
    padded, lengths = gather([reader.tokens] * len(slices.starts), slices, reader.longest, 0)
    return [tuple(tokens[:length].tolist()) for tokens, length in zip(padded, lengths, strict=True)]


def batches_of(
    documents,
    windows,
    transform=lambda windows, num_rows: windows,
    *,
    examples_per_row=1,
    plan=None,
    mix_by="example",
    **changes,
) -> Batches:
    """Batches of window specs: 8 rows, all of this process, seed 3. By default the windows themselves."""
    arguments = {"batch_size": 8, "seed": 3} | changes
    spec = BatchSpec(tuple(windows), examples_per_row, pad_id=0, mix_by=mix_by, plan=plan)
    return batches(documents, spec, transform, **({"local_rows": range(arguments["batch_size"])} | arguments))
