"""Converts a SentencePiece model to Hugging Face's tokenizer.json."""

import base64
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError
from data.tokenizers.sentencepiece_model import SentencePieceTokenizer

SPACE = "\u2581"  # SentencePiece's character for a space
_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType of sentencepiece_model.proto
_KINDS = {3: "words", 4: "characters"}


def sentencepiece_json(tokenizer: SentencePieceTokenizer, names: Mapping[int, str]) -> dict[str, Any]:
    """Returns a tokenizer.json, without added tokens, that encodes text to the ids of `tokenizer`.

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

    names: the special tokens' names, by id.

    Raises ConfigError, with what tokenizers cannot express, for other models.
    """
    proto = tokenizer.proto()
    _check(proto, names, tokenizer.where)
    pieces = [names.get(id_, piece.piece) for id_, piece in enumerate(proto.pieces)]
    trainer, unk = proto.trainer_spec, proto.trainer_spec.unk_id
    if trainer.model_type == _UNIGRAM:
        vocab = [[text, piece.score] for text, piece in zip(pieces, proto.pieces, strict=True)]
        model = {"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": trainer.byte_fallback}
    else:
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[unk],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": trainer.byte_fallback,
            "ignore_merges": False,
            "vocab": {text: id_ for id_, text in enumerate(pieces)},
            "merges": _merges(proto, tokenizer.where),
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": _normalizer(proto.normalizer_spec),
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": _decoder(proto.normalizer_spec),
        "model": model,
    }


def _check(proto: Any, names: Mapping[int, str], where: str) -> None:
    """Raises ConfigError for properties of a model that tokenizers does not have."""
    trainer, normalizer, types = proto.trainer_spec, proto.normalizer_spec, proto.SentencePiece
    of_text = [piece for id_, piece in enumerate(proto.pieces) if id_ not in names]
    symbol = next((piece.piece for piece in of_text if piece.type == types.USER_DEFINED), "")
    problems = {
        f"consists of {_KINDS.get(trainer.model_type)}": trainer.model_type not in (_UNIGRAM, _BPE),
        "puts the space after a word (treat_whitespace_as_suffix)": trainer.treat_whitespace_as_suffix,
        "does not escape spaces (escape_whitespaces=false)": not normalizer.escape_whitespaces,
        "normalizes decoded text (denormalizer_spec)": bool(proto.denormalizer_spec.precompiled_charsmap),
        f"has the user-defined symbol {symbol!r}": bool(symbol),
        "has unused pieces": any(piece.type == types.UNUSED for piece in of_text),
    }
    for problem, applies in problems.items():
        if applies:
            raise ConfigError(f"{where} {problem}, which a Hugging Face tokenizer.json cannot express")


def _merges(proto: Any, where: str) -> list[list[str]]:
    """Returns the merges of a BPE model, best first."""
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == proto.SentencePiece.NORMAL}
    ranked: list[tuple[float, int, list[str]]] = []
    of_score: dict[float, str] = {}
    for text, score in scores.items():
        splits = [[text[:k], text[k:]] for k in range(1, len(text)) if text[:k] in scores and text[k:] in scores]
        ranked += [(-score, -len(split[0]), split) for split in splits]
        if splits and of_score.setdefault(score, text) != text:
            raise ConfigError(
                f"{where} has the same score for {of_score[score]!r} and {text!r}, and a Hugging Face tokenizer.json "
                "cannot express that the first in a text is merged first"
            )
    return [split for *_, split in sorted(ranked, key=lambda merge: merge[:2])]


def _normalizer(spec: Any) -> dict[str, Any] | None:
    """Returns SentencePiece's normalization: characters, then spaces, then the space before the text."""
    steps: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        # U+2581 of the text itself is a space for SentencePiece at the end of the text alone.
        steps += [_replace({"Regex": pattern}, "") for pattern in (r"\A +", rf"[ {SPACE}]+\z")]
        steps.append(_replace({"Regex": " {2,}"}, " "))
    if spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(_replace({"String": " "}, SPACE))
    return {"type": "Sequence", "normalizers": steps}


def _decoder(spec: Any) -> dict[str, Any]:
    steps = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}
