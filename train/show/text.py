"""Tokens as runs of text that look alike, with what cannot be seen made visible."""

from typing import NamedTuple

import numpy as np

from contract.vocab import Vocab
from data.tokenizer import Tokenizer

# kind: what the legend says of it
KINDS = {
    "text": "text",
    "sentinel": "sentinel",
    "mask": "mask",
    "mode": "mode token",
    "eos": "end of text",
    "special": "special token",
    "random": "random token shown",
    "kept": "token kept",
}


class Run(NamedTuple):
    """Neighbouring tokens of one kind: ordinary text, or one special token."""

    text: str
    kind: str  # one of KINDS
    scored: bool


def runs(ids: np.ndarray, scored: np.ndarray, tokenizer: Tokenizer, *, shown: np.ndarray | None = None) -> list[Run]:
    """The runs of `ids`, int [n]; `scored`, bool [n], says which are predicted and paid for.

    shown: bool [n], which of the ids are as they are in the original. Where given, scored text is of the kind "kept"
    or "random".
    """
    kinds = _kinds_of_ids(tokenizer.vocab)[np.clip(ids, 0, tokenizer.vocab.size)]
    if shown is not None:
        kinds = np.where((kinds == "text") & scored, np.where(shown, "kept", "random"), kinds)
    is_text = np.isin(kinds, ("text", "random", "kept"))
    alike = (kinds[1:] == kinds[:-1]) & (scored[1:] == scored[:-1]) & is_text[1:]
    found = []
    for part in np.split(np.arange(len(ids)), np.flatnonzero(~alike) + 1):
        if len(part):
            first = part[0]
            text = _text(tokenizer, ids[part]) if is_text[first] else tokenizer.decode(ids[part])
            found.append(Run(text, str(kinds[first]), bool(scored[first])))
    return found


def visible(text: str) -> list[tuple[str, bool]]:
    """`text` in pieces, each with whether it is a mark that stands for a character that does not show.

    A newline becomes a mark and a line break, a tab a mark and itself; other characters that do not print, those that
    turn the direction of writing among them, become Python's escapes.
    """
    pieces: list[tuple[str, bool]] = []
    plain = ""
    for char in text:
        if char.isprintable():
            plain += char
            continue
        mark = {"\n": "↵", "\t": "⇥"}.get(char, repr(char)[1:-1])
        pieces += [(plain, False), (mark, True)]
        plain = char if char in "\n\t" else ""
    return [piece for piece in [*pieces, (plain, False)] if piece[0]]


def _kinds_of_ids(vocab: Vocab) -> np.ndarray:
    """str [size + 1]: the kind of each id, and of those outside the vocabulary."""
    kinds = np.full(vocab.size + 1, "special", "U8")
    kinds[vocab.content_start : vocab.content_end] = "text"
    kinds[vocab.sentinels] = "sentinel"
    kinds[[id_ for _, id_ in vocab.modes]] = "mode"
    kinds[vocab.mask] = "mask"
    kinds[vocab.eos] = "eos"
    return kinds


def _text(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """Decoded behind a letter: SentencePiece drops the space that begins a text, and this is the middle of one."""
    letter = tokenizer.encode("a")
    return tokenizer.decode(np.concatenate([letter, ids])).removeprefix(tokenizer.decode(letter))
