"""Writes a tokenizer as the files of a Hugging Face folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.vocab import Vocab
from data.tokenizers.base import Tokenizer
from data.tokenizers.byte import ByteTokenizer
from data.tokenizers.huggingface import HuggingFaceTokenizer
from data.tokenizers.sentencepiece_json import sentencepiece_json
from data.tokenizers.sentencepiece_model import SentencePieceTokenizer
from data.tokenizers.specials import appended_names, role_names
from data.tokenizers.tokenizer_json import byte_alphabet

_NO_LIMIT = 10**30  # model_max_length of a tokenizer without a limit, as transformers writes it


def write_huggingface_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    token_types: bool = False,
    max_length: int | None = None,
) -> None:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into the existing `folder`.

    `transformers.AutoTokenizer.from_pretrained(folder)` then encodes text to the ids of `tokenizer`. Unlike
    `tokenizer`, it reads text such as "</s>" as a special token, unless it gets split_special_tokens=True, as all
    tokenizers of transformers do. `sentencepiece_json` lists the deviations for SentencePiece models.

    Args:
      tokenizer: any tokenizer of data.tokenizer.
      folder: an existing folder. The .model file of a SentencePiece model is copied into it as spiece.model.
      begin, end: ids that transformers puts before and after each text (add_special_tokens=True): () and (eos,) for
        T5, (cls,) and (sep,) for BERT. A pair of texts A and B becomes begin A end B end, with token type 1 from B on.
        None for both: those of the tokenizer.json that `tokenizer` was read from, none for other tokenizers.
      token_types: whether transformers returns token_type_ids, which models without token types do not accept.
      max_length: model_max_length, the most tokens of a text; None: no limit.

    Raises ConfigError, one line, for a SentencePiece model that a tokenizer.json cannot express.
    """
    vocab = tokenizer.vocab
    data = _tokenizer_json(tokenizer)
    if begin is not None or end is not None:
        data["post_processor"] = _template(vocab, begin or (), end or ())
    roles = role_names(vocab)
    named = set(roles.values())
    others = [name for id_, name in sorted(vocab.names().items()) if _is_used(vocab, id_) and name not in named]
    special_tokens = {f"{role}_token": name for role, name in roles.items()}
    special_tokens |= {"additional_special_tokens": others} if others else {}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"],
        "model_max_length": _NO_LIMIT if max_length is None else max_length,
        **special_tokens,
    }
    _write(folder / "tokenizer.json", data)
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "special_tokens_map.json", special_tokens)
    if isinstance(tokenizer, SentencePieceTokenizer):
        (folder / "spiece.model").write_bytes(tokenizer.serialized)


def _is_used(vocab: Vocab, id_: int) -> bool:
    """Returns whether an id is a mode token or a sentinel."""
    return id_ in vocab.sentinel_ids or id_ in dict(vocab.modes).values()


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns a tokenizer.json with all special tokens of `tokenizer`."""
    vocab = tokenizer.vocab
    if isinstance(tokenizer, HuggingFaceTokenizer):
        added = [*(tokenizer.json.get("added_tokens") or []), *_added(appended_names(vocab))]
        return {**tokenizer.json, "added_tokens": added}
    if isinstance(tokenizer, ByteTokenizer):
        data = _byte_json(vocab)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        data = sentencepiece_json(tokenizer, dict(vocab.own_names))
    else:
        raise TypeError(f"{type(tokenizer).__name__} has no tokenizer.json")
    data["added_tokens"] = _added(dict(sorted(vocab.names().items())))
    return data


def _added(names: Mapping[int, str]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": id_, "content": name, **flags} for id_, name in names.items()]


def _byte_json(vocab: Vocab) -> dict[str, Any]:
    """Returns byte-level BPE without merges: each byte is a token."""
    names = vocab.names()
    ids = {names[id_]: id_ for id_ in range(vocab.content_start)}
    ids |= {character: byte + vocab.content_start for character, byte in byte_alphabet().items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
            "merges": [],
        },
    }


def _template(vocab: Vocab, begin: Sequence[int], end: Sequence[int]) -> dict[str, Any]:
    """Returns the post-processor that puts special tokens around a text, and around each of a pair of texts."""
    names = vocab.names()

    def special(ids: Sequence[int], type_id: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[id_], "type_id": type_id}} for id_ in ids]

    def text(name: str, type_id: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    single = [*special(begin, 0), text("A", 0), *special(end, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), *special(end, 1)],
        "special_tokens": {
            names[id_]: {"id": names[id_], "ids": [id_], "tokens": [names[id_]]} for id_ in {*begin, *end}
        },
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
