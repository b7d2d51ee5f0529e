"""Writes a tokenizer as the files of a Hugging Face folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.vocab import GENERAL_NAMES, Vocab
from data.tokenizers.base import Tokenizer, appended_names
from data.tokenizers.huggingface import BYTE_OF, HuggingFaceTokenizer
from data.tokenizers.tokenizer import SENTENCEPIECE_SPACE as SPACE
from data.tokenizers.tokenizer import SentencePieceTokenizer

_NO_LIMIT = 10**30  # model_max_length of a tokenizer without a limit, as transformers writes it
_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType of sentencepiece_model.proto
_KINDS = {3: "words", 4: "characters"}


def write_huggingface_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    bos: int | None = None,
    token_types: bool = False,
    max_length: int | None = None,
) -> None:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into the existing `folder`.

    `transformers.AutoTokenizer.from_pretrained(folder)` then encodes text to the ids of `tokenizer`. Unlike
    `tokenizer`, it reads text such as "</s>" as a special token, unless it gets split_special_tokens=True, as all
    tokenizers of transformers do (Unigram finds it among its pieces nevertheless), it encodes the text after a mask or
    a sentinel as a new text, and it keeps a space before a sentinel, except where white space is one space in any case.
    `_sentencepiece` lists the deviations for SentencePiece models.

    Args:
      tokenizer: any tokenizer of data.tokenizer.
      folder: an existing folder. The .model file of a SentencePiece model is copied into it as spiece.model.
      begin, end: ids that transformers puts before and after each text (add_special_tokens=True): () and (eos,) for
        T5, (cls,) and (sep,) for BERT. A pair of texts A and B becomes begin A end B end, with token type 1 from B on.
        None for both: those of the tokenizer.json that `tokenizer` was read from, none for other tokenizers.
      bos: the id of `bos_token`, with which a causal model begins; None: that of the vocabulary.
      token_types: whether transformers returns token_type_ids, which models without token types do not accept.
      max_length: model_max_length, the most tokens of a text; None: no limit.

    Raises ConfigError, one line, for a SentencePiece model that a tokenizer.json cannot express, and where the name of
    an appended special token is also that of an ordinary one.
    """
    vocab = tokenizer.vocab
    data = _tokenizer_json(tokenizer)
    _check_ids(data, tokenizer)
    if begin is not None or end is not None:
        data["post_processor"] = _template(vocab, begin or (), end or ())
    names = vocab.names()
    ids = {role: getattr(vocab, role) for role in GENERAL_NAMES} | ({} if bos is None else {"bos": bos})
    roles = {role: names[id_] for role, id_ in ids.items() if id_ >= 0}
    used = dict.fromkeys((*vocab.sentinel_ids, *dict(vocab.modes).values()))  # <extra_id_0> first, as in T5's files
    others = [names[id_] for id_ in used if names[id_] not in roles.values()]
    special_tokens: dict[str, Any] = {f"{role}_token": name for role, name in roles.items()}
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


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns a tokenizer.json with all special tokens of `tokenizer`."""
    vocab = tokenizer.vocab
    if isinstance(tokenizer, HuggingFaceTokenizer):
        own = [dict(token) for token in tokenizer.json.get("added_tokens") or []]
        for token in own:
            if token["id"] == vocab.mask:
                token["lstrip"] = tokenizer.takes_space_before(vocab.mask)
        added = [*own, *_added(appended_names(vocab), tokenizer)]
        return {**tokenizer.json, "added_tokens": added, "truncation": None, "padding": None}
    library = _sentencepiece(tokenizer) if isinstance(tokenizer, SentencePieceTokenizer) else _bytes(vocab)
    data = json.loads(library.to_str())
    data["added_tokens"] = _added(dict(sorted(vocab.names().items())), tokenizer)
    return data


def _check_ids(data: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Raises ConfigError for a special token whose name is that of another token too, which transformers would take."""
    from tokenizers import Tokenizer as Library

    library = Library.from_str(json.dumps(data))
    for id_, name in tokenizer.vocab.names().items():
        if (found := library.token_to_id(name)) != id_:
            raise ConfigError(
                f"{tokenizer.where} has the ordinary token {name!r} (id {found}), and {name!r} was appended as a "
                f"special token (id {id_}), which a Hugging Face tokenizer.json cannot express"
            )


def _added(names: Mapping[int, str], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns the added tokens of these special ones.

    `tokenizers` strips all white space before a token with lstrip, line breaks too. So sentinels, which code may have
    in lines of their own, have it only where white space is one space in any case.
    """
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    is_one_space = np.array_equal(tokenizer.encode("a\n  a"), tokenizer.encode("a a"))
    strips = {id_: tokenizer.takes_space_before(id_) and (id_ == tokenizer.vocab.mask or is_one_space) for id_ in names}
    return [{"id": id_, "content": name, "lstrip": strips[id_], **flags} for id_, name in names.items()]


def _bytes(vocab: Vocab) -> Any:
    """Returns byte-level BPE without merges: each byte is a token."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    ids = {vocab.names()[id_]: id_ for id_ in range(vocab.content_start)}
    ids |= {character: byte + vocab.content_start for character, byte in BYTE_OF.items()}
    library = Library(models.BPE(ids, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return library


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> Any:
    """Returns a tokenizer of `tokenizers` that encodes text to the ids of `tokenizer`.

    It applies SentencePiece's normalization as normalizers, and has no pre-tokenizer, because SentencePiece's pieces
    may contain any number of spaces. For BPE, the merges are all divisions of a piece in two pieces, those of a piece
    with a greater score first: SentencePiece merges any two neighbours that form a piece, the best piece first.

    Deviations from SentencePiece, which every tokenizer.json of such a model has:
    - Unigram: text that spells the name of a piece for a byte ("<0x0A>") is that piece, because tokenizers looks for
      all pieces in text. Sums of scores that are equal in float32 may differ in float64, which chooses between
      segmentations that SentencePiece takes for equal, as of "=====".
    - BPE: of two divisions of one piece that overlap in a text, SentencePiece merges the first in the text; here it is
      that with the longer left part.
    - A normalization rule such as nmt_nfkc: tokenizers applies it to whole characters as they are seen (grapheme
      clusters) if these have less than 6 bytes, and else to code points. SentencePiece replaces the longest sequence
      of code points. Letters with several marks, Korean jamo and CR LF may differ.

    Raises ConfigError, with what tokenizers cannot express, for other models.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models

    proto, names = tokenizer.proto(), dict(tokenizer.vocab.own_names)
    _check(proto, names, tokenizer.where)
    pieces = [names.get(id_, piece.piece) for id_, piece in enumerate(proto.pieces)]
    trainer, spec = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type == _UNIGRAM:
        scores = [piece.score for piece in proto.pieces]
        model = models.Unigram(list(zip(pieces, scores, strict=True)), trainer.unk_id, trainer.byte_fallback)
    else:
        model = models.BPE(
            {text: id_ for id_, text in enumerate(pieces)},
            _merges(proto, tokenizer.where),
            unk_token=pieces[trainer.unk_id],
            fuse_unk=True,
            byte_fallback=trainer.byte_fallback,
        )
    library = Library(model)
    library.normalizer = _normalizer(spec)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        steps.append(decoders.Strip(" ", 1, 0))
    library.decoder = decoders.Sequence(steps)
    return library


def _check(proto: Any, names: Mapping[int, str], where: str) -> None:
    """Raises ConfigError for properties of a model that tokenizers does not have."""
    trainer, types = proto.trainer_spec, proto.SentencePiece
    of_text = [piece for id_, piece in enumerate(proto.pieces) if id_ not in names]
    symbol = next((piece.piece for piece in of_text if piece.type == types.USER_DEFINED), "")
    problems = {
        f"consists of {_KINDS.get(trainer.model_type)}": trainer.model_type not in (_UNIGRAM, _BPE),
        "puts the space after a word (treat_whitespace_as_suffix)": trainer.treat_whitespace_as_suffix,
        "does not escape spaces (escape_whitespaces=false)": not proto.normalizer_spec.escape_whitespaces,
        "normalizes decoded text (denormalizer_spec)": bool(proto.denormalizer_spec.precompiled_charsmap),
        f"has the user-defined symbol {symbol!r}": bool(symbol),
        "has unused pieces": any(piece.type == types.UNUSED for piece in of_text),
    }
    for problem, applies in problems.items():
        if applies:
            raise ConfigError(f"{where} {problem}, which a Hugging Face tokenizer.json cannot express")


def _merges(proto: Any, where: str) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model, best first."""
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == proto.SentencePiece.NORMAL}
    ranked: list[tuple[float, int, tuple[str, str]]] = []
    of_score: dict[float, str] = {}
    for text, score in scores.items():
        splits = [(text[:k], text[k:]) for k in range(1, len(text)) if text[:k] in scores and text[k:] in scores]
        ranked += [(-score, -len(split[0]), split) for split in splits]
        if splits and of_score.setdefault(score, text) != text:
            raise ConfigError(
                f"{where} has the same score for {of_score[score]!r} and {text!r}, and a Hugging Face tokenizer.json "
                "cannot express that the first in a text is merged first"
            )
    return [split for *_, split in sorted(ranked, key=lambda merge: merge[:2])]


def _normalizer(spec: Any) -> Any:
    """Returns SentencePiece's normalization: characters, then spaces, then the space before the text."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        # U+2581 of the text itself is a space for SentencePiece at the end of the text alone.
        steps += [normalizers.Replace(Regex(pattern), "") for pattern in (r"\A +", rf"[ {SPACE}]+\z")]
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _template(vocab: Vocab, begin: Sequence[int], end: Sequence[int]) -> dict[str, Any]:
    """Returns the post-processor that puts special tokens around a text, and around each of a pair of texts."""
    from tokenizers import processors

    names = vocab.names()
    single = [*(names[id_] for id_ in begin), "$A", *(names[id_] for id_ in end)]
    template = processors.TemplateProcessing(
        single=single,
        pair=[*single, "$B:1", *(f"{names[id_]}:1" for id_ in end)],
        special_tokens=[(names[id_], id_) for id_ in sorted({*begin, *end})],
    )
    return json.loads(template.__getstate__())


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
