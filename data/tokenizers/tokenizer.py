"""Chooses the tokenizer of a corpus: UTF-8 bytes, a SentencePiece model, or a Hugging Face tokenizer.json."""

import dataclasses

from contract.errors import ConfigError
from contract.vocab import DECODER_STARTS, GENERAL_NAMES
from data.sources.config import CorpusConfig
from data.sources.files import expand_home
from data.tokenizers.base import Tokenizer
from data.tokenizers.byte import ByteTokenizer
from data.tokenizers.huggingface import HuggingFaceTokenizer
from data.tokenizers.sentencepiece_model import SentencePieceTokenizer
from files.paths import check_access, is_folder

__all__ = ["ByteTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer", "Tokenizer", "make_tokenizer"]


def make_tokenizer(corpus: CorpusConfig) -> Tokenizer:
    """The tokenizer of `data.tokenizer`.

    "byte"; the path of a SentencePiece .model file; or the path of a Hugging Face tokenizer.json, or of its folder.

    Raises ConfigError for any other value, for a data.decoder_start_token that the vocabulary lacks, and as the
    tokenizers do.
    """
    tokenizer = _tokenizer(corpus)
    start = corpus.decoder_start_token
    vocab = dataclasses.replace(tokenizer.vocab, decoder_start_token=start)
    if vocab.decoder_start < 0:
        others = [repr(name) for name in DECODER_STARTS if getattr(vocab, name) >= 0]
        raise ConfigError(
            f"data.decoder_start_token={start!r} needs the special token {GENERAL_NAMES[start]}, which "
            f"data.tokenizer={corpus.tokenizer!r} lacks: set data.append_special_tokens=True, or choose "
            f"{' or '.join(others)}"
        )
    tokenizer.vocab = vocab
    return tokenizer


def _tokenizer(corpus: CorpusConfig) -> Tokenizer:
    options = {
        "num_sentinels": corpus.num_sentinels,
        "mode_tokens": corpus.mode_tokens,
        "append_special_tokens": corpus.append_special_tokens,
    }
    if corpus.tokenizer == "byte":
        return ByteTokenizer(**options)
    check_access(corpus.tokenizer, f"data.tokenizer={corpus.tokenizer!r}")
    if corpus.tokenizer.endswith(".model"):
        return SentencePieceTokenizer(corpus.tokenizer, **options)
    path = expand_home(corpus.tokenizer, f"data.tokenizer={corpus.tokenizer!r}")
    if path.endswith(".json") or is_folder(path):
        return HuggingFaceTokenizer(corpus.tokenizer, **options)
    raise ConfigError(
        f"data.tokenizer={corpus.tokenizer!r} must be 'byte' or the path of a SentencePiece .model file, of a Hugging "
        "Face tokenizer.json or of a folder with a tokenizer.json; tokenizers are not downloaded by name"
    )
