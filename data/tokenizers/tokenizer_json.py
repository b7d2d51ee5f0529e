"""Reads a Hugging Face tokenizer.json: the bytes of its ordinary tokens, and its special tokens."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from contract.errors import ConfigError
from data.sources.files import expand_home, read_regular_file
from data.tokenizers.specials import ModelTokens, is_special_name, known_roles, with_substitutes
from files.paths import exists, is_folder

_MOST_IDS = 2**26  # as model.vocab_size
_ROLES = ("pad", "eos", "unk", "mask", "cls", "sep", "bos")  # fields of Vocab; "pad_token" and so on in the files
_UNUSED = re.compile(r"\[unused[0-9]+\]")  # BERT's spare ids, which no text contains
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def read_folder(path: str, where: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Returns name -> contents of the tokenizer's files, tokenizer.json last, and what the others say.

    path: of a tokenizer.json, or of its folder. The others are special_tokens_map.json and tokenizer_config.json, which
    name special tokens, and of which the latter has precedence.

    Raises ConfigError, with `where`, for a missing or unreadable file.
    """
    file = expand_home(path, where).rstrip("/")
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
            files[name] = _read(other, where)
            settings |= _parse(files[name], other, where)
    return files | {os.path.basename(file): _read(file, where)}, settings


def _read(file: str, where: str) -> bytes:
    try:
        return read_regular_file(file)
    except OSError as error:
        raise ConfigError(f"{where}: {file} cannot be read ({error.strerror})") from None


def _parse(contents: bytes, file: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(contents)
    except ValueError:
        raise ConfigError(f"{where}: {file} is not JSON") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {file} holds no JSON object")
    return value


def parse_tokenizer(contents: bytes, where: str) -> dict[str, Any]:
    """Returns tokenizer.json as a dict. Raises ConfigError for other contents and for an unsupported model."""
    data = _parse(contents, "tokenizer.json", where)
    model = data.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ConfigError(f"{where} is no tokenizer.json of Hugging Face's tokenizers: it has no model with a vocab")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "WordPiece", "Unigram"):
        raise ConfigError(f"{where} has a model of type {kind}: use one of type BPE, WordPiece or Unigram")
    if model.get("end_of_word_suffix"):
        raise ConfigError(
            f"{where} marks the ends of words ({model['end_of_word_suffix']!r}), so its tokens do not show where words "
            "begin: use a tokenizer of byte-level BPE, of Metaspace or of WordPiece"
        )
    return data


def components(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the normalizers and pre-tokenizers, without the sequences that contain them."""
    pending = [data.get("normalizer"), data.get("pre_tokenizer")]
    while pending:
        part = pending.pop(0)
        if part and part["type"] == "Sequence":
            pending[:0] = part.get("normalizers") or part.get("pretokenizers") or []
        elif part:
            yield part


def vocabulary(data: Mapping[str, Any]) -> dict[str, int]:
    """Returns text -> id of the model's tokens, without added tokens."""
    vocab = data["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {text: id_ for id_, (text, _) in enumerate(vocab)}


def read_tokens(data: Mapping[str, Any], settings: Mapping[str, Any], mode_tokens: tuple[str, ...], where: str):
    """Returns the ModelTokens of a tokenizer.json.

    Special tokens are the added tokens that the file marks as special, and all tokens that the other files, the
    model's unk or a published name make a special token. Added tokens of another kind, such as GPT-NeoX's runs of
    spaces, are ordinary tokens.

    settings: as in `read_folder`. Raises ConfigError where the files name a special token that does not exist, where no
    token is EOS, and for a model that does not show which bytes its tokens spell.
    """
    vocab, added = vocabulary(data), data.get("added_tokens") or []
    ids = vocab | {token["content"]: token["id"] for token in added}
    if (largest := max(ids.values(), default=0)) >= _MOST_IDS:
        raise ConfigError(f"{where} has the id {largest}: ids must be less than {_MOST_IDS}")
    named = _named_roles(data, settings, ids, where)
    specials = {id_: text for text, id_ in named.values()}
    specials |= {token["id"]: token["content"] for token in added if token["special"]}
    candidates = {token["id"]: token["content"] for token in added}
    candidates |= {id_: text for text, id_ in vocab.items() if _UNUSED.fullmatch(text) or _may_be_sentinel(text)}
    specials |= {id_: text for id_, text in candidates.items() if _is_special(text, mode_tokens)}
    roles = with_substitutes(known_roles(specials) | {role: id_ for role, (_, id_) in named.items()})
    if roles.get("unk", -1) in {roles.get(role) for role in _ROLES if role != "unk"}:
        del roles["unk"]  # GPT-2's unk_token is its EOS; byte-level BPE has no unknown text
    if "eos" not in roles:
        _check_no_specials(specials, roles, where)
    content, begins_word = _content(data, {i: t for t, i in ids.items() if i not in specials}, where)
    used = sorted(content.keys() | {id_ for id_ in specials if min(content) < id_ < max(content)})
    gap = next((id_ + 1 for id_, following in itertools.pairwise(used) if following != id_ + 1), None)
    if gap is not None:
        raise ConfigError(f"{where} has no token with the id {gap}: its ids must have no gaps")
    return ModelTokens(max(ids.values()) + 1, roles, specials, content, begins_word)


def _may_be_sentinel(text: str) -> bool:
    return "<extra_id_" in text


def _is_special(text: str, mode_tokens: tuple[str, ...]) -> bool:
    return is_special_name(text) or text in mode_tokens or _UNUSED.fullmatch(text) is not None


def _named_roles(
    data: Mapping[str, Any], settings: Mapping[str, Any], ids: Mapping[str, int], where: str
) -> dict[str, tuple[str, int]]:
    """Returns field of Vocab -> (text, id) of the special tokens that the files name as such."""
    model, post = data["model"], data.get("post_processor") or {}
    names = {}
    if post.get("type") in ("BertProcessing", "RobertaProcessing"):
        names |= {"cls": post["cls"][0], "sep": post["sep"][0]}
    for role in _ROLES:
        token = settings.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and not isinstance(text, str):
            raise ConfigError(
                f"{where}: the files next to it have {token!r:.40} for {role}_token, which must be a text"
            )
        if text:
            names[role] = text
    unk = model.get("unk_token")
    if model.get("unk_id") is not None:
        unk = model["vocab"][model["unk_id"]][0]
    if unk:
        names["unk"] = unk
    missing = [(role, text) for role, text in names.items() if text not in ids]
    if missing:
        role, text = missing[0]
        raise ConfigError(f"{where}: its {role}_token {text!r} is not a token of tokenizer.json")
    return {role: (text, ids[text]) for role, text in names.items()}


def _check_no_specials(specials: Mapping[int, str], roles: Mapping[str, int], where: str) -> None:
    """Raises ConfigError if one of the special tokens, which have another purpose or an unknown one, could be EOS."""
    unknown = [text for id_, text in specials.items() if id_ not in roles.values() and not _is_special(text, ())]
    if unknown:
        raise ConfigError(
            f"{where} does not say which of its special tokens is EOS ({', '.join(map(repr, unknown[:5]))}): write "
            '{"eos_token": "..."} into a special_tokens_map.json in its folder'
        )


def _content(data: Mapping[str, Any], texts: Mapping[int, str], where: str) -> tuple[dict[int, bytes], frozenset[int]]:
    """Returns the UTF-8 bytes of ordinary tokens, id -> text, and those that begin a word without a space.

    In byte-level BPE a character of a token is a byte. Elsewhere the character of Metaspace is a space, and <0x0A> is
    a byte in a model with byte fallback. WordPiece's tokens spell no spaces; those without "##" begin a word.
    """
    model, parts = data["model"], list(components(data))
    kinds = {part["type"] for part in parts}
    if not texts:
        raise ConfigError(f"{where} has no ordinary tokens")
    added = {token["id"] for token in data.get("added_tokens") or []}
    if model.get("type") == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        begins = frozenset(id_ for id_, text in texts.items() if not text.startswith(prefix))
        return {id_: text.removeprefix(prefix).encode() for id_, text in texts.items()}, begins
    if "ByteLevel" in kinds:
        return {id_: _byte_level(text, id_ in added) for id_, text in texts.items()}, frozenset()
    space = space_symbol(parts)
    if not space:
        raise ConfigError(
            f"{where} has tokens that do not show where words begin (its pre_tokenizer is neither ByteLevel nor "
            "Metaspace): train it with one of these, or as WordPiece"
        )
    falls_back = model.get("byte_fallback", False)
    return {id_: _piece(text, space, falls_back) for id_, text in texts.items()}, frozenset()


def space_symbol(parts: list[dict[str, Any]]) -> str:
    """Returns the character with which the normalizers and pre-tokenizers `parts` write a space; "" if none does."""
    for part in parts:
        if part["type"] == "Metaspace":
            return part["replacement"]
        if part["type"] == "Replace" and part["pattern"] == {"String": " "}:
            return part["content"]
    return ""


def _piece(text: str, space: str, falls_back: bool) -> bytes:
    match = _BYTE.fullmatch(text) if falls_back else None
    return bytes([int(match[1], 16)]) if match else text.replace(space, " ").encode()


def byte_alphabet() -> dict[str, int]:
    """Returns character -> byte of byte-level BPE (Radford et al. 2019, gpt-2's encoder.py).

    Printable bytes of Latin-1 are their own characters; the others are the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


_BYTE_OF = byte_alphabet()


def _byte_level(text: str, is_added: bool) -> bytes:
    if is_added or not all(character in _BYTE_OF for character in text):
        return text.encode()
    return bytes(_BYTE_OF[character] for character in text)


def piece_texts(data: Mapping[str, Any], tokens: ModelTokens) -> dict[int, str]:
    """Returns id -> Tokenizer.piece of the ordinary tokens of a tokenizer.json. tokens: of `read_tokens`."""
    texts = {id_: text for text, id_ in vocabulary(data).items()}
    texts |= {token["id"]: token["content"] for token in data.get("added_tokens") or []}
    parts = list(components(data))
    if any(part["type"] == "ByteLevel" for part in parts):
        return {id_: content.decode("utf-8", "backslashreplace") for id_, content in tokens.content.items()}
    space = space_symbol(parts)
    return {id_: texts[id_].replace(space, " ") if space else texts[id_] for id_ in tokens.content}
