"""The tokenizer of a Hugging Face tokenizer.json: byte-level BPE, Metaspace BPE and Unigram, WordPiece."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.tokenizers.base import (
    ModelTokens,
    Tokenizer,
    check_unicode,
    is_special_name,
    known_roles,
    role_of,
    with_substitutes,
)
from files.atomic import parse_json
from files.paths import exists, is_folder, read_bytes

_ROLES = ("pad", "eos", "unk", "mask", "cls", "sep", "bos")  # fields of Vocab; "pad_token" and so on in the files
_UNUSED = re.compile(r"\[unused[0-9]+\]")  # BERT's spare ids, which no text contains
_BRACKETED = re.compile(r"<\S+>|\[\S+\]|\|\|\|\S+\|\|\|")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Options of tokenizer_config.json that some classes of transformers obey -> the part of tokenizer.json and its field
# with the same meaning, and the default of these classes.
_OPTIONS = {
    "do_lower_case": ("BertNormalizer", "lowercase", True),
    "strip_accents": ("BertNormalizer", "strip_accents", None),
    "tokenize_chinese_chars": ("BertNormalizer", "handle_chinese_chars", True),
    "add_prefix_space": ("ByteLevel", "add_prefix_space", False),
}
_OBEYED_BY = {
    "BertNormalizer": ("BertTokenizer", "ElectraTokenizer"),
    "ByteLevel": ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer"),
}
# Character -> byte of byte-level BPE (Radford et al. 2019, gpt-2's encoder.py). Printable bytes of Latin-1 are their
# own characters; the others are the characters from U+0100 on, in order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE}
BYTE_OF |= {chr(0x100 + k): byte for k, byte in enumerate(b for b in range(256) if b not in _PRINTABLE)}


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json, read by Hugging Face's `tokenizers`, with the ids of its special tokens.

    Special tokens are those that tokenizer.json, special_tokens_map.json and tokenizer_config.json name. Where the
    files name none, sep is eos and cls is bos, as in BERT. Text such as "</s>" is ordinary, and `encode` adds no
    special token, truncates nothing, pads nothing and leaves no merge out (dropout), whatever the file says.

    A text that spells the name of a byte ("<0x0A>") is this byte in Unigram with byte fallback, as in the library.

    WordPiece loses case (if the file says so), white space, and words with characters that it lacks. `num_bytes` counts
    the letters of its tokens, not the spaces between words, which no token spells.
    """

    def __init__(self, path: str, **special_tokens: Any):
        """Loads the tokenizer.json at `path`, or in the folder `path`.

        special_tokens: the fields of config.data, as for `make_vocab`.

        Raises ConfigError where `tokenizers` is not installed, where files are missing or contradict each other, for a
        model that is none of those above, and as `make_vocab` does; any error for damaged files (`make_tokenizer`).
        """
        self.where = f"data.tokenizer={path!r}"
        self.files, settings = _read_folder(path, self.where)
        contents = list(self.files.values())[-1]
        self.json = parse_json(contents)
        _check_model(self.json, self.where)
        if "dropout" in self.json["model"]:
            self.json["model"]["dropout"] = None  # the library would encode each text in another way each time
        _library(self.json, self.where)  # what follows relies on the format of the parts
        tokens, self._pieces = _read_tokens(self.json, settings, special_tokens["mode_tokens"], self.where)
        self._set_tokens(tokens, self.where, special_tokens)
        digest = hashlib.blake2b(contents, digest_size=8)
        digest.update(repr(sorted(tokens.specials.items())).encode())
        # The other files may change alone. Where they change no role, the tokenizer is the same as without them.
        usual = _roles(self.json, {}, tokens.specials, self.where)
        if unusual := sorted(item for item in tokens.roles.items() if usual.get(item[0]) != item[1]):
            digest.update(repr(unusual).encode())
        self.fingerprint = "huggingface:" + digest.hexdigest()
        self._encoder = _for_raw_text(self.json, tokens.specials, digest.hexdigest(), self.where)
        _check_options(self.json, settings, self.where)
        self._own_lstrip = {token["id"]: token.get("lstrip", False) for token in self.json.get("added_tokens") or []}
        self._before_special = " " if self.json["model"].get("type") == "WordPiece" else ""

    def encode(self, text: str) -> np.ndarray:
        check_unicode(text)
        return np.array(self._encoder.encode(text, add_special_tokens=False).ids, np.int32)

    def takes_space_before(self, special: int) -> bool:
        """As in the base class, and of its own tokens where the file says so (lstrip)."""
        return self._own_lstrip.get(special, False) or super().takes_space_before(special)

    def without_space_before(self, text: str, special: int) -> str:
        # `tokenizers` strips all white space, and not the space alone.
        return text.rstrip() if self._own_lstrip.get(special) else super().without_space_before(text, special)

    def piece(self, id_: int) -> str:
        return self._pieces[id_]

    def _decode_content(self, ids: np.ndarray) -> str:
        return self._encoder.decode(ids.tolist(), skip_special_tokens=False)


def _read_folder(path: str, where: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Returns name -> contents of the tokenizer's files, tokenizer.json last, and what the others say.

    path: of a tokenizer.json, or of its folder. The others are special_tokens_map.json and tokenizer_config.json, which
    name special tokens, and of which the latter has precedence.

    Raises ConfigError, with `where`, for a missing file.
    """
    file = os.path.expanduser(path).rstrip("/")
    if not file.endswith(".json") or is_folder(file):
        file = os.path.join(file, "tokenizer.json")
    if not exists(file):
        raise ConfigError(
            f"{where}: {file} does not exist; where the folder has other tokenizer files, transformers writes it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    files: dict[str, bytes] = {}
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        other = os.path.join(os.path.dirname(file), name)
        if exists(other):
            files[name] = read_bytes(other)
            settings |= parse_json(files[name])
    return files | {os.path.basename(file): read_bytes(file)}, settings


def _check_model(data: Any, where: str) -> None:
    """Raises ConfigError for a tokenizer.json with an unsupported model."""
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise ConfigError(f"{where} is no tokenizer.json of Hugging Face's tokenizers: it has no model with a vocab")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "WordPiece", "Unigram"):
        raise ConfigError(f"{where} has a model of type {kind}: use one of type BPE, WordPiece or Unigram")
    if not data.get("decoder"):
        raise ConfigError(f"{where} has no decoder: save it with one, such as tokenizers.decoders.ByteLevel")
    if model.get("end_of_word_suffix"):
        raise ConfigError(
            f"{where} marks the ends of words ({model['end_of_word_suffix']!r}), so its tokens do not show where words "
            "begin: use a tokenizer of byte-level BPE, of Metaspace or of WordPiece"
        )


def _check_options(data: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError where `transformers` would encode raw text by other options than tokenizer.json has."""
    name = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    for part in _components(data):
        for option, (kind, field, default) in _OPTIONS.items():
            if part["type"] != kind or field not in part or (name and name not in _OBEYED_BY[kind]):
                continue
            value = settings.get(option, default if name else part[field])
            if value != part[field]:
                raise ConfigError(
                    f"{where}: transformers reads {option}={value} in tokenizer_config.json, and tokenizer.json has "
                    f"{field}={part[field]}: change one of them; or, to use tokenizer.json, set "
                    '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json'
                )


def _library(data: Mapping[str, Any], where: str) -> Any:
    """Returns the library's tokenizer of a tokenizer.json."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(f"{where} needs Hugging Face's tokenizers: pip install -e '.[huggingface]'") from None
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def _for_raw_text(data: Mapping[str, Any], specials: Mapping[int, str], digest: str, where: str) -> Any:
    """Returns the library's tokenizer with the same ids that finds no special token in text.

    `encode_special_tokens` excludes added tokens only. The model itself would still find the special tokens of its own
    vocabulary, as Unigram does: "</s>" is a piece of T5's with the greatest score. So these have other texts here.
    """
    ids, model = _vocabulary(data), dict(data["model"])
    data = {**data, "model": model}
    hidden = {text: f"\uffff special {id_} {digest}" for text, id_ in ids.items() if id_ in specials}
    if hidden and model.get("merges"):  # of text that spells a special token, such as HTML
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if hidden.keys().isdisjoint({*pair, "".join(pair)})]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(text, text): id_ for text, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    # An added token that the model's vocabulary has is not needed; the ids of the others follow from their number.
    added = [token for token in data.get("added_tokens") or [] if token["content"] not in hidden]
    data["added_tokens"] = [token | {"special": token["id"] in specials} for token in added]
    library = _library(data | {"truncation": None, "padding": None, "post_processor": None}, where)
    for token in added:
        id_ = library.token_to_id(token["content"])
        if id_ != token["id"]:
            raise ConfigError(f"{where} gives {token['content']!r} the id {token['id']}, and tokenizers the id {id_}")
    library.encode_special_tokens = True  # the added tokens that are special are not looked for in text
    return library


def _components(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the normalizers and pre-tokenizers, without the sequences that contain them."""
    pending = [data.get("normalizer"), data.get("pre_tokenizer")]
    while pending:
        part = pending.pop(0)
        if part and part["type"] == "Sequence":
            pending[:0] = part.get("normalizers") or part.get("pretokenizers") or []
        elif part:
            yield part


def _vocabulary(data: Mapping[str, Any]) -> dict[str, int]:
    """Returns text -> id of the model's tokens, without added tokens."""
    vocab = data["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {text: id_ for id_, (text, _) in enumerate(vocab)}


def _read_tokens(
    data: Mapping[str, Any], settings: Mapping[str, Any], mode_tokens: tuple[str, ...], where: str
) -> tuple[ModelTokens, dict[int, str]]:
    """Returns the tokens of a tokenizer.json, and id -> Tokenizer.piece of the ordinary ones.

    Special tokens are the added tokens that the file marks as special, and all tokens that the other files, the
    model's unk or a published name make a special token; and names in brackets that follow these outside the model's
    vocabulary, such as Qwen's <tool_call>. Added tokens of another kind, such as GPT-NeoX's runs of spaces, are
    ordinary tokens, and so are, between the ids of ordinary ones, those without a name here, such as Gemma's
    <start_of_turn>, as in its SentencePiece model, and those whose role another token has, such as Gemma's <s> of HTML.

    settings: as in `_read_folder`. Raises ConfigError where the files name a special token that does not exist, where
    no token is EOS, and for a model that does not show which bytes its tokens spell.
    """

    def is_special(text: str) -> bool:
        return is_special_name(text) or text in mode_tokens or _UNUSED.fullmatch(text) is not None

    vocab, added, ids = _vocabulary(data), data.get("added_tokens") or [], _ids(data)
    specials = {ids[text]: text for text in _named_roles(data, settings, ids, where).values()}
    specials |= {token["id"]: token["content"] for token in added if token["special"] or is_special(token["content"])}
    specials |= {id_: text for text, id_ in vocab.items() if _UNUSED.fullmatch(text)}
    specials |= {id_: text for text, id_ in vocab.items() if "<extra_id_" in text and is_special(text)}
    roles = _roles(data, settings, specials, where)
    if roles.get("unk", -1) in {roles.get(role) for role in _ROLES if role != "unk"}:
        del roles["unk"]  # GPT-2's unk_token is its EOS; byte-level BPE has no unknown text
    unknown = [text for id_, text in specials.items() if id_ not in roles.values() and not is_special(text)]
    if "eos" not in roles and unknown:
        raise ConfigError(
            f"{where} does not say which of its special tokens is EOS ({', '.join(map(repr, unknown[:5]))}): write "
            '{"eos_token": "..."} into a special_tokens_map.json in its folder'
        )
    outside = {token["id"]: token["content"] for token in added if token["content"] not in vocab}
    first = min(outside.keys() & {*roles.values()}, default=max(ids.values()))
    specials |= {id_: text for id_, text in outside.items() if id_ > first and _BRACKETED.fullmatch(text)}
    ordinary = ids.values() - specials.keys()
    named = {id_ for id_, text in specials.items() if is_special(text) and roles.get(role_of(text) or "", id_) == id_}
    named |= {*roles.values()}
    inside = {id_ for id_ in specials.keys() - named if min(ordinary) < id_ < max(ordinary)}
    specials = {id_: text for id_, text in specials.items() if id_ not in inside}
    content, pieces, begins_word = _content(data, {i: t for t, i in ids.items() if i not in specials}, where)
    used = sorted(content.keys() | {id_ for id_ in specials if min(content) < id_ < max(content)})
    gap = next((id_ + 1 for id_, following in itertools.pairwise(used) if following != id_ + 1), None)
    if gap is not None:
        raise ConfigError(f"{where} has no token with the id {gap}: its ids must have no gaps")
    return ModelTokens(max(ids.values()) + 1, roles, specials, content, begins_word), pieces


def _roles(
    data: Mapping[str, Any], settings: Mapping[str, Any], specials: Mapping[int, str], where: str
) -> dict[str, int]:
    """Returns field of Vocab -> id of the special tokens, which the files name or which have usual names."""
    ids = _ids(data)
    named = _named_roles(data, settings, ids, where)
    return with_substitutes(known_roles(specials) | {role: ids[text] for role, text in named.items()})


def _ids(data: Mapping[str, Any]) -> dict[str, int]:
    """Returns text -> id of the model's tokens and of the added ones."""
    return _vocabulary(data) | {token["content"]: token["id"] for token in data.get("added_tokens") or []}


def _named_roles(
    data: Mapping[str, Any], settings: Mapping[str, Any], ids: Mapping[str, int], where: str
) -> dict[str, str]:
    """Returns field of Vocab -> text of the special tokens that the files name as such."""
    model, post = data["model"], data.get("post_processor") or {}
    names = {}
    if post.get("type") in ("BertProcessing", "RobertaProcessing"):
        names |= {"cls": post["cls"][0], "sep": post["sep"][0]}
    for role in _ROLES:
        token = settings.get(f"{role}_token")
        if text := token.get("content") if isinstance(token, dict) else token:
            names[role] = text
    unk = model.get("unk_token") if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]
    if unk:
        names["unk"] = unk
    for role, text in names.items():
        if text not in ids:
            raise ConfigError(f"{where}: its {role}_token {text!r} is not a token of tokenizer.json")
    return names


def _content(
    data: Mapping[str, Any], texts: dict[int, str], where: str
) -> tuple[dict[int, bytes], dict[int, str], frozenset[int]]:
    """Returns the bytes and the pieces of ordinary tokens, id -> text, and those that begin a word without a space.

    In byte-level BPE a character of a token is a byte. Elsewhere the character of Metaspace is a space, and <0x0A> is
    a byte in a model with byte fallback. WordPiece's tokens spell no spaces; those without "##" begin a word.
    """
    model, parts = data["model"], list(_components(data))
    if model.get("type") == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        begins = frozenset(id_ for id_, text in texts.items() if not text.startswith(prefix))
        return {id_: text.removeprefix(prefix).encode() for id_, text in texts.items()}, texts, begins
    if any(part["type"] == "ByteLevel" for part in parts):
        added = {token["id"] for token in data.get("added_tokens") or []}
        content = {id_: text.encode() if id_ in added else _byte_level(text) for id_, text in texts.items()}
        return content, {id_: text.decode("utf-8", "backslashreplace") for id_, text in content.items()}, frozenset()
    space = _space_symbol(parts)
    if not space:
        raise ConfigError(
            f"{where} has tokens that do not show where words begin (its pre_tokenizer is neither ByteLevel nor "
            "Metaspace): train it with one of these, or as WordPiece"
        )
    pieces = {id_: text.replace(space, " ") for id_, text in texts.items()}
    content = {id_: text.encode() for id_, text in pieces.items()}
    if model.get("byte_fallback", False):
        matches = {id_: _BYTE.fullmatch(text) for id_, text in texts.items()}
        content |= {id_: bytes([int(match[1], 16)]) for id_, match in matches.items() if match}
    return content, pieces, frozenset()


def _byte_level(text: str) -> bytes:
    return bytes(BYTE_OF[character] for character in text) if all(c in BYTE_OF for c in text) else text.encode()


def _space_symbol(parts: list[dict[str, Any]]) -> str:
    """Returns the character with which the normalizers and pre-tokenizers `parts` write a space; "" if none does."""
    for part in parts:
        if part["type"] == "Metaspace":
            return part["replacement"]
        if part["type"] == "Replace" and part["pattern"] == {"String": " "}:
            return part["content"]
    return ""
