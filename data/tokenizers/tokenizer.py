"""Chooses the tokenizer of a corpus: UTF-8 bytes, a SentencePiece model, or a Hugging Face tokenizer.json."""

import dataclasses
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.vocab import DECODER_STARTS, GENERAL_NAMES
from data.sources.config import CorpusConfig
from data.sources.files import expand_home
from data.tokenizers.base import Tokenizer, check_unicode
from data.tokenizers.huggingface import HuggingFaceTokenizer
from data.tokenizers.sentencepiece import SentencePieceTokenizer
from data.tokenizers.specials import ModelTokens
from files.paths import check_access, is_folder, reason

__all__ = ["ByteTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer", "Tokenizer", "make_tokenizer"]


class ByteTokenizer(Tokenizer):
    """ByT5's ids: pad 0, eos 1, unk 2, byte b is b + 3; then mask, cls, sep, bos, the mode tokens and the sentinels.

    Source: Xue et al., ByT5 (TACL 2022), and its tokenizer. Deviation: ByT5's 125 sentinels follow the bytes directly.
    """

    fingerprint = "byte"

    def __init__(self, **special_tokens: Any):
        """special_tokens: the fields of config.data, as for `make_vocab`, which has the errors."""
        specials = {0: "<pad>", 1: "</s>", 2: "<unk>"}
        content = {byte + 3: bytes([byte]) for byte in range(256)}
        tokens = ModelTokens(3 + 256, {"pad": 0, "eos": 1, "unk": 2}, specials, content)
        self._set_tokens(tokens, "data.tokenizer='byte'", special_tokens)

    def encode(self, text: str) -> np.ndarray:
        check_unicode(text)
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + self.vocab.content_start

    def piece(self, id_: int) -> str:
        return f"<0x{id_ - self.vocab.content_start:02X}>"

    def _decode_content(self, ids: np.ndarray) -> str:
        return (ids - self.vocab.content_start).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def make_tokenizer(corpus: CorpusConfig) -> Tokenizer:
    """The tokenizer of `data.tokenizer`.

    "byte"; the path of a SentencePiece .model file; or the path of a Hugging Face tokenizer.json, or of its folder.

    Raises ConfigError for any other value, for files that cannot be read, for a data.decoder_start_token that the
    vocabulary lacks, and as the tokenizers do.
    """
    where = f"data.tokenizer={corpus.tokenizer!r}"
    try:
        tokenizer = _read_tokenizer(corpus, where)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({reason(error)}): give the path of a tokenizer's file") from None
    except Exception as error:  # of the libraries, whatever is damaged
        message = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{where} cannot be read as a tokenizer ({type(error).__name__}: {message}): give the path of a whole file"
        ) from error
    start = corpus.decoder_start_token
    vocab = dataclasses.replace(tokenizer.vocab, decoder_start_token=start)
    if vocab.decoder_start < 0:
        others = [repr(name) for name in DECODER_STARTS if getattr(vocab, name) >= 0]
        raise ConfigError(
            f"data.decoder_start_token={start!r} needs the special token {GENERAL_NAMES[start]}, which "
            f"{where} lacks: set data.append_special_tokens=True, or choose {' or '.join(others)}"
        )
    tokenizer.vocab = vocab
    return tokenizer


def _read_tokenizer(corpus: CorpusConfig, where: str) -> Tokenizer:
    options = {
        "num_sentinels": corpus.num_sentinels,
        "mode_tokens": corpus.mode_tokens,
        "append_special_tokens": corpus.append_special_tokens,
    }
    if corpus.tokenizer == "byte":
        return ByteTokenizer(**options)
    check_access(corpus.tokenizer, where)
    if corpus.tokenizer.endswith(".model"):
        return SentencePieceTokenizer(corpus.tokenizer, **options)
    path = expand_home(corpus.tokenizer, where)
    if path.endswith(".json") or is_folder(path):
        return HuggingFaceTokenizer(corpus.tokenizer, **options)
    raise ConfigError(
        f"{where} must be 'byte' or the path of a SentencePiece .model file, of a Hugging "
        "Face tokenizer.json or of a folder with a tokenizer.json; tokenizers are not downloaded by name"
    )
