"""Chooses the tokenizer of a corpus: UTF-8 bytes, a SentencePiece model, or a Hugging Face tokenizer.json."""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import STOPS, ConfigError, one_line
from contract.vocab import DECODER_STARTS, GENERAL_NAMES
from data.sources.config import CorpusConfig
from data.tokenizers.base import (
    ModelTokens,
    Tokenizer,
    check_unicode,
    is_sentinel_name,
    is_special_name,
    known_roles,
    role_of,
    with_substitutes,
)
from data.tokenizers.huggingface import HuggingFaceTokenizer
from files.paths import check_access, is_folder, read_bytes, reason

__all__ = ["ByteTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer", "Tokenizer", "make_tokenizer"]

SENTENCEPIECE_SPACE = "\u2581"  # SentencePiece's character for a space
_MODEL_ROLES = ("pad", "eos", "unk", "bos")  # fields of Vocab whose ids a SentencePiece model has


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


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with its own ids for eos and unk, and for other special tokens if the model has them.

    Special tokens are SentencePiece's pad, eos, bos and unk, its control symbols, its user-defined symbols with the
    name of a special token ("[MASK]", "<extra_id_0>") or of a mode token, and pieces <extra_id_k> after all others. The
    latter two kinds are pieces that SentencePiece finds in text; here text such as "<extra_id_0>" is ordinary. All
    other pieces are ordinary tokens.

    Special tokens that the model lacks follow its pieces, as in Stanford Alpaca's train.py for Llama's pad. A model
    that normalizes text or lacks characters loses them: decode(encode(text)) then differs from the text.
    """

    def __init__(self, path: str, **special_tokens: Any):
        """Loads the model at `path`. special_tokens: the fields of config.data, as for `make_vocab`.

        Raises ConfigError where sentencepiece is not installed, where the model has no EOS id, and as `make_vocab`
        does; OSError, and RuntimeError for a damaged file (`make_tokenizer`).
        """
        self.where = f"data.tokenizer={path!r}"
        try:
            import sentencepiece
        except ImportError:
            raise ConfigError(f"{self.where} needs SentencePiece: pip install -e '.[sentencepiece]'") from None
        self._model = sentencepiece.SentencePieceProcessor()
        self.serialized = read_bytes(os.path.expanduser(path))
        self._model.LoadFromSerializedProto(self.serialized)  # unlike the constructor, raises for an empty model
        self.files = {Path(path).name: self.serialized}
        found_in_text = self._specials_found_in_text(special_tokens["mode_tokens"])
        self.fingerprint = "sentencepiece:" + hashlib.blake2b(self.serialized, digest_size=8).hexdigest()
        if found_in_text:  # SentencePiece does not find control symbols in text
            proto = self.proto()
            for id_ in found_in_text:
                proto.pieces[id_].type = proto.SentencePiece.CONTROL
            self._model.LoadFromSerializedProto(proto.SerializeToString())
            self.fingerprint += ":" + hashlib.blake2b(repr(found_in_text).encode(), digest_size=8).hexdigest()
        self._set_tokens(self._tokens(), self.where, special_tokens)

    def _specials_found_in_text(self, mode_tokens: tuple[str, ...]) -> list[int]:
        """Returns the ids of the special tokens that SentencePiece would find in text."""
        names = [self._model.id_to_piece(id_) for id_ in range(self._model.get_piece_size())]
        own = {getattr(self._model, f"{role}_id")(): role for role in _MODEL_ROLES}
        held = {role for id_, role in own.items() if id_ >= 0}  # another piece with such a name is text: HTML's </s>
        named = [
            id_
            for id_, name in enumerate(names)
            if (is_special_name(name) and (id_ in own or role_of(name) not in held)) or name in mode_tokens
        ]
        candidates = list(filter(self._is_text, named))
        if not candidates:
            return []
        last_text = max(id_ for id_, name in enumerate(names) if not is_sentinel_name(name))
        pieces, user_defined = self.proto().pieces, self.proto().SentencePiece.USER_DEFINED
        # Other pieces with such a name are text that the model was trained on, such as HTML's <s>.
        return [id_ for id_ in candidates if pieces[id_].type == user_defined or id_ > last_text]

    def proto(self) -> Any:
        """Returns the ModelProto of the model file."""
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(self.serialized)
        return proto

    def _tokens(self) -> ModelTokens:
        model = self._model
        size = model.get_piece_size()
        specials = {
            id_: model.id_to_piece(id_) for id_ in range(size) if model.is_control(id_) or model.is_unknown(id_)
        }
        ids = {role: getattr(model, f"{role}_id")() for role in _MODEL_ROLES}
        roles = with_substitutes(known_roles(specials) | {role: id_ for role, id_ in ids.items() if id_ >= 0})
        if "eos" not in roles:
            raise ConfigError(f"{self.where} has no eos id: train one by python -m data.train_tokenizer")
        content = {id_: self._text(id_) for id_ in range(size) if self._is_text(id_)}
        return ModelTokens(size, roles, specials, content)

    def _is_text(self, id_: int) -> bool:
        model = self._model
        return not (model.is_control(id_) or model.is_unknown(id_) or model.is_unused(id_))

    def _text(self, id_: int) -> bytes:
        piece = self._model.id_to_piece(id_)
        if self._model.is_byte(id_):
            return bytes([int(piece.removeprefix("<0x").removesuffix(">"), 16)])
        return piece.replace(SENTENCEPIECE_SPACE, " ").encode("utf-8")

    def encode(self, text: str) -> np.ndarray:
        check_unicode(text)
        return np.array(self._model.encode(text, out_type=int, add_bos=False, add_eos=False), np.int32)

    def piece(self, id_: int) -> str:
        return self._model.id_to_piece(id_).replace(SENTENCEPIECE_SPACE, " ")

    def _decode_content(self, ids: np.ndarray) -> str:
        return self._model.decode(ids.tolist())


def make_tokenizer(corpus: CorpusConfig) -> Tokenizer:
    """The tokenizer of `data.tokenizer`.

    "byte"; the path of a SentencePiece .model file; or the path of a Hugging Face tokenizer.json, or of its folder.

    Raises ConfigError for any other value, for files that cannot be read, for a data.decoder_start_token that the
    vocabulary lacks, and as the tokenizers do.
    """
    where = f"data.tokenizer={corpus.tokenizer!r}"
    try:
        tokenizer = _read_tokenizer(corpus, where)
    except (ConfigError, *STOPS):
        raise
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({reason(error)}): give the path of a tokenizer's file") from error
    except BaseException as error:  # of the libraries, whatever is damaged
        problem = f"{where} cannot be read as a tokenizer ({one_line(error)[:220]})"
        raise ConfigError(f"{problem}: give the path of a whole file") from error
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
    options = {name: getattr(corpus, name) for name in ("num_sentinels", "mode_tokens", "append_special_tokens")}
    if corpus.tokenizer == "byte":
        return ByteTokenizer(**options)
    check_access(corpus.tokenizer, where)
    if corpus.tokenizer.endswith(".model"):
        return SentencePieceTokenizer(corpus.tokenizer, **options)
    path = os.path.expanduser(corpus.tokenizer)
    if path.endswith(".json") or is_folder(path):
        return HuggingFaceTokenizer(corpus.tokenizer, **options)
    raise ConfigError(
        f"{where} must be 'byte' or the path of a SentencePiece .model file, of a Hugging "
        "Face tokenizer.json or of a folder with a tokenizer.json; tokenizers are not downloaded by name"
    )
