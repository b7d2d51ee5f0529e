"""The tokenizer of a SentencePiece model."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.sources.files import expand_home
from data.tokenizers.base import Tokenizer, check_unicode
from data.tokenizers.specials import (
    ModelTokens,
    is_sentinel_name,
    is_special_name,
    known_roles,
    with_substitutes,
)
from files.paths import read_bytes

SPACE = "\u2581"  # SentencePiece's character for a space


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
        self.serialized = read_bytes(expand_home(path, self.where))
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
        named = [id_ for id_, name in enumerate(names) if is_special_name(name) or name in mode_tokens]
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
        ids = {role: getattr(model, f"{role}_id")() for role in ("pad", "eos", "unk", "bos")}
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
        return piece.replace(SPACE, " ").encode("utf-8")

    def encode(self, text: str) -> np.ndarray:
        check_unicode(text)
        return np.array(self._model.encode(text, out_type=int, add_bos=False, add_eos=False), np.int32)

    def piece(self, id_: int) -> str:
        return self._model.id_to_piece(id_).replace(SPACE, " ")

    def _decode_content(self, ids: np.ndarray) -> str:
        return self._model.decode(ids.tolist())
