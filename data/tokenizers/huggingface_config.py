"""Compares tokenizer_config.json with tokenizer.json: `transformers` rebuilds some tokenizers from the former."""

import json
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError

_METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
# Texts on which rebuilt tokenizers differ: case, accents, other scripts, spaces at the ends, runs of spaces, controls.
_PROBES = (
    "a", " ", " a", "  a", "a ", "a  b", "A b", "The Quick BROWN Fox", "É é", "漢字 and", "a\u6f22b", "\n", "a\n\nb",
    "\ta", "a\x00b", "a\u200bb", "don't 12345, (x)!",
)  # fmt: skip


def check_tokenizer_config(data: Mapping[str, Any], config: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError if `transformers` would encode raw text to other ids than tokenizer.json does.

    Several classes of transformers 5, which `tokenizer_class` names, take from tokenizer.json little more than the
    vocabulary; their normalizer and pre-tokenizer follow from tokenizer_config.json. They are compared on a few texts.
    Without a tokenizer_class, `do_lower_case` and `add_prefix_space` are those of BERT and GPT-2, as in published
    folders. Other classes are not compared: most of them read tokenizer.json alone. Llama's are compared on texts
    without white space at their ends or in runs, in which published folders differ.

    data: tokenizer.json. config: tokenizer_config.json.
    """
    name = str(config.get("tokenizer_class") or _usual_class(data, config)).removesuffix("Fast")
    rebuilt = _rebuilt(name, data, config)
    if rebuilt is None or _plain(rebuilt) == _plain(data):
        return
    texts = [*_PROBES, _words(data)]
    if name == "LlamaTokenizer":  # published folders of Llama 2 differ in white space at the ends and in runs
        texts = list(dict.fromkeys(" ".join(text.split()) for text in texts))
    for text, ours, theirs in zip(texts, _ids(data, texts), _ids(rebuilt, texts), strict=True):
        if ours != theirs:
            shown = repr(text) if len(text) < 30 else f"{text[:30]!r}..."
            raise ConfigError(
                f"{where}: transformers' {name} encodes {shown} by tokenizer_config.json differently than "
                'tokenizer.json does: to use tokenizer.json in both, set "tokenizer_class": "PreTrainedTokenizerFast" '
                "in tokenizer_config.json"
            )


def _usual_class(data: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns the class of a tokenizer_config.json that names none; "" if no option depends on a class."""
    if "do_lower_case" in config and data["model"].get("type") == "WordPiece":
        return "BertTokenizer"
    if "add_prefix_space" in config and (data.get("pre_tokenizer") or {}).get("type") == "ByteLevel":
        return "GPT2Tokenizer"
    return ""


def _rebuilt(name: str, data: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the tokenizer.json that the class `name` makes of `data`; None for a class that is not known to do so."""
    kind, model = data["model"].get("type", "BPE"), data["model"]
    if name in ("BertTokenizer", "ElectraTokenizer") and kind == "WordPiece":
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        }
        model = {**model, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        return {**data, "normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": model}
    is_byte_level = any(part.get("type") == "ByteLevel" for part in _flat(data.get("pre_tokenizer")))
    if name in ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer") and kind == "BPE":
        prefix = bool(config.get("add_prefix_space", False))
        byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
        return {**data, "normalizer": None, "pre_tokenizer": byte_level}
    if name == "LlamaTokenizer" and kind == "BPE" and not is_byte_level:
        prefix = config.get("add_prefix_space")
        scheme = "never" if prefix is False else "always" if config.get("legacy", False) else "first"
        pre_tokenizer = _METASPACE | {"prepend_scheme": scheme, "split": False}
        model = {**model, "fuse_unk": True, "byte_fallback": True, "unk_token": None}
        return {**data, "normalizer": None, "pre_tokenizer": pre_tokenizer, "model": model}
    if name == "T5Tokenizer" and kind == "Unigram":
        normalizer = next((part for part in _flat(data.get("normalizer")) if part["type"] == "Precompiled"), None)
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE]}
        model = {**model, "unk_id": 2, "byte_fallback": False}
        return {**data, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model}
    return None


def _flat(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Returns the parts of a normalizer or pre-tokenizer, without sequences."""
    if not part:
        return []
    parts = part.get("normalizers") or part.get("pretokenizers") or []
    return [inner for outer in parts for inner in _flat(outer)] if part["type"] == "Sequence" else [part]


def _plain(data: Mapping[str, Any]) -> list[Any]:
    """Returns what decides the ids of a text, without the vocabulary."""
    model = {name: value for name, value in data["model"].items() if name not in ("vocab", "merges")}
    return [_flat(data.get("normalizer")), _flat(data.get("pre_tokenizer")), model]


def _words(data: Mapping[str, Any]) -> str:
    """Returns a text of up to 300 tokens of the vocabulary."""
    vocab = data["model"]["vocab"]
    tokens = list(vocab) if isinstance(vocab, dict) else [piece for piece, _ in vocab]
    return " ".join(tokens[:: max(1, len(tokens) // 300)][:300]).replace("\u2581", " ").replace("\u0120", " ")


def _ids(data: Mapping[str, Any], texts: list[str]) -> list[list[int]]:
    import tokenizers

    contents = {**data, "truncation": None, "padding": None, "post_processor": None}
    library = tokenizers.Tokenizer.from_str(json.dumps(contents))
    library.encode_special_tokens = True
    return [library.encode(text, add_special_tokens=False).ids for text in texts]
