"""The settings that this package reads. train.config.DataConfig has them, and so has data.prepare's command line."""

from typing import Literal, Protocol


class DataFields(Protocol):
    """Fields of `config.data` that decide which documents there are and how they become tokens."""

    source: Literal["stdlib", "stdlib_functions", "text", "jsonl", "tfds"]
    path: str
    document_per: Literal["file", "line", "paragraph"]
    on_unreadable: Literal["error", "skip"]
    tokenizer: str
    num_sentinels: int
    mode_tokens: tuple[str, ...]
    cache_dir: str
