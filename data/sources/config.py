"""The config fields of a corpus: which documents there are, and how they become tokens."""

import dataclasses
from typing import Annotated, Literal

from contract.vocab import DecoderStart
from data.sources.filters import FilterConfig

DEFAULT_CACHE_DIR = "~/.cache/cloze"  # data.cache_dir in configs/base.py


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """The fields of `config.data` that determine a token store. configs/base.py describes each.

    experiment.config.DataConfig adds the fields of windows and batches. data.prepare makes its flags from these fields.
    """

    source: str  # a key of data.sources.SOURCES
    path: str
    heldout_path: str
    document_per: Literal["file", "line", "paragraph"]
    text_key: str
    on_unreadable: Literal["error", "skip"]
    tokenizer: str
    # These four change the special ids, but not the token ids of raw text.
    num_sentinels: Annotated[int, "[1, 2**16]"]
    mode_tokens: tuple[str, ...]
    append_special_tokens: bool
    decoder_start_token: DecoderStart
    cache_dir: str
    filters: FilterConfig


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One corpus of `config.data.sources`: in a run of several, the fields that each has for itself.

    configs/base.py describes them.
    """

    source: str  # a key of data.sources.SOURCES
    path: str
    heldout_path: str
    document_per: Literal["file", "line", "paragraph"]
    text_key: str
    documents: Literal["", "join", "pack", "split", "whole"]  # "": as data.documents
    weight: Annotated[float, "[1e-30, 1e30]"]


# The fields of config.data that each of several corpora has for itself, with the values that config.data then has.
OF_EACH_CORPUS = {"source": "", "path": "", "heldout_path": "", "document_per": "file", "text_key": "text"}
