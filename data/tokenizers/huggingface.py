"""The tokenizer of a Hugging Face tokenizer.json: byte-level BPE, Metaspace BPE and Unigram, WordPiece."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.tokenizers.base import Tokenizer, check_unicode, letter_token
from data.tokenizers.specials import SpecialTokensConfig, make_vocab
from data.tokenizers.tokenizer_config import check_tokenizer_config
from data.tokenizers.tokenizer_json import (
    components,
    parse_tokenizer,
    piece_texts,
    read_folder,
    read_tokens,
    space_symbol,
    vocabulary,
)


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json, read by Hugging Face's `tokenizers`, with the ids of its special tokens.

    Special tokens are those that tokenizer.json, special_tokens_map.json and tokenizer_config.json name. Where the
    files name none, sep is eos and cls is bos, as in BERT. Text such as "</s>" is ordinary, and `encode` adds no
    special token, truncates nothing and pads nothing, whatever the file says.

    A text that spells the name of a byte ("<0x0A>") is this byte in Unigram with byte fallback, as in the library.

    WordPiece loses case (if the file says so), white space, and words with characters that it lacks. `num_bytes` counts
    the letters of its tokens, not the spaces between words, which no token spells.
    """

    def __init__(
        self, path: str, *, num_sentinels: int, mode_tokens: tuple[str, ...], append_special_tokens: bool = True
    ):
        """Loads the tokenizer.json at `path`, or in the folder `path`.

        Raises ConfigError where `tokenizers` is not installed, where files are missing, unreadable or contradict each
        other, for a model that is none of those above, and as `make_vocab` does.
        """
        self.where = f"data.tokenizer={path!r}"
        self.files, settings = read_folder(path, self.where)
        contents = list(self.files.values())[-1]
        self.json = parse_tokenizer(contents, self.where)
        _library_tokenizer(self.json, self.where)  # what follows relies on the format of the parts
        tokens = read_tokens(self.json, settings, mode_tokens, self.where)
        self.adds_pad = "pad" not in tokens.roles and append_special_tokens
        self.vocab = make_vocab(
            tokens, SpecialTokensConfig(num_sentinels, mode_tokens, append_special_tokens), self.where
        )
        digest = hashlib.blake2b(contents, digest_size=8)
        digest.update(repr(sorted(tokens.specials.items())).encode())
        self.fingerprint = "huggingface:" + digest.hexdigest()
        self._library = _load(_for_raw_text(self.json, tokens.specials, digest.hexdigest()), self.where)
        check_tokenizer_config(self.json, settings, self.where)
        self._is_special = np.zeros(self.vocab.size, bool)
        self._is_special[[id_ for id_ in tokens.specials if id_ != self.vocab.unk]] = True
        self._pieces = piece_texts(self.json, tokens)
        self._token_bytes = np.zeros(self.vocab.size, np.int64)
        for id_, text in tokens.content.items():
            self._token_bytes[id_] = len(text)
        self._own_lstrip = {token["id"]: token.get("lstrip", False) for token in self.json.get("added_tokens") or []}
        self._letter = letter_token(tokens.content)
        self._before_special = " " if self.json["model"].get("type") == "WordPiece" else ""
        # Of one character that is a word, whose only space can be the one that the tokenizer adds.
        self.dummy_bytes = int(any(b" " in tokens.content.get(id_, b"") for id_ in self.encode("a").tolist()))

    def encode(self, text: str) -> np.ndarray:
        check_unicode(text)
        ids = np.array(self._library.encode(text, add_special_tokens=False).ids, np.int32)
        if self._is_special[ids].any():
            name = self.vocab.names()[int(ids[self._is_special[ids]][0])]
            raise ConfigError(f"{self.where} encodes a raw text to its special token {name!r}: use another tokenizer")
        return ids

    def takes_space_before(self, special: int) -> bool:
        """As the file says of its own tokens (lstrip)."""
        return self._own_lstrip.get(special, super().takes_space_before(special))

    def without_space_before(self, text: str, special: int) -> str:
        # `tokenizers` strips all white space, and not the space alone.
        return text.rstrip() if self._own_lstrip.get(special) else super().without_space_before(text, special)

    def num_bytes(self, ids: np.ndarray) -> int:
        return int(self._token_bytes[ids].sum())

    def piece(self, id_: int) -> str:
        return self._pieces[id_]

    def _decode_content(self, ids: np.ndarray) -> str:
        return self._library.decode(ids.tolist(), skip_special_tokens=False)


def _library_tokenizer(data: Mapping[str, Any], where: str) -> Any:
    """Returns the library's tokenizer of a tokenizer.json. Raises ConfigError for contents that the library refuses."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(f"{where} needs Hugging Face's tokenizers: pip install -e '.[huggingface]'") from None
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises Exception itself
        message = " ".join(str(error).split())
        raise ConfigError(f"{where} cannot be read by tokenizers {tokenizers.__version__}: {message}") from None


def _load(data: Mapping[str, Any], where: str) -> Any:
    """Returns the library's tokenizer, which finds no special token in text."""
    library = _library_tokenizer(data, where)
    for token in data["added_tokens"]:
        id_ = library.token_to_id(token["content"])
        if id_ != token["id"]:
            raise ConfigError(f"{where} gives {token['content']!r} the id {token['id']}, and tokenizers the id {id_}")
    library.encode_special_tokens = True  # the added tokens that are special are not looked for in text
    return library


def _for_raw_text(data: Mapping[str, Any], specials: Mapping[int, str], digest: str) -> dict[str, Any]:
    """Returns a tokenizer.json with the same ids that finds no special token in text.

    `encode_special_tokens` excludes added tokens only. The model itself would still find the special tokens of its own
    vocabulary, as Unigram does: "</s>" is a piece of T5's with the greatest score. So these have other texts here.
    """
    ids, model = vocabulary(data), dict(data["model"])
    data = {**data, "model": model}
    hidden = {text: f"\uffff special {id_} {digest}" for text, id_ in ids.items() if id_ in specials}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(text, text): id_ for text, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    # An added token that the model's vocabulary has is not needed; the ids of the others follow from their number.
    added = [token for token in data.get("added_tokens") or [] if token["content"] not in hidden]
    data["added_tokens"] = [token | {"special": token["id"] in specials} for token in added]
    data |= {"truncation": None, "padding": None, "post_processor": None}
    data["decoder"] = data.get("decoder") or _decoder(data)
    return data


def _decoder(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decoder for a tokenizer.json without one."""
    parts = list(components(data))
    if data["model"].get("type") == "WordPiece":
        return {"type": "WordPiece", "prefix": data["model"]["continuing_subword_prefix"], "cleanup": True}
    if any(part["type"] == "ByteLevel" for part in parts):
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    steps = [
        {"type": "Replace", "pattern": {"String": space_symbol(parts)}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {"type": "Sequence", "decoders": steps}
