"""Splits tokens into runs of text of one kind, and makes unprintable characters visible."""

from typing import NamedTuple

import numpy as np

from contract.vocab import Vocab
from data.tokenizers.tokenizer import Tokenizer

# kind of token -> name in the legend
KINDS = {
    "text": "text",
    "sentinel": "sentinel",
    "mask": "mask",
    "mode": "mode token",
    "eos": "end of text",
    "special": "special token",
    "random": "random token",
    "kept": "kept token",
}
ORDINARY = ("text", "random", "kept")  # kinds whose tokens are ordinary text, not special tokens


class Run(NamedTuple):
    """Adjacent tokens of one kind, all scored or none: a stretch of ordinary text, or one special token."""

    text: str
    kind: str  # one of KINDS
    scored: bool


def runs(
    ids: np.ndarray, scored: np.ndarray, tokenizer: Tokenizer, *, is_original: np.ndarray | None = None
) -> list[Run]:
    """Returns the runs of `ids`, int [n].

    scored: bool [n], whether the token has loss weight.
    is_original: bool [n], whether the id equals the original token. If given, scored text has the kind "kept" where
      True and "random" where False.
    """
    kinds = _kinds_of_ids(tokenizer.vocab)[np.clip(ids, 0, tokenizer.vocab.size)]
    if is_original is not None:
        kinds = np.where((kinds == "text") & scored, np.where(is_original, "kept", "random"), kinds)
    is_ordinary = np.isin(kinds, ORDINARY)
    continues = (kinds[1:] == kinds[:-1]) & (scored[1:] == scored[:-1]) & is_ordinary[1:]
    found = []
    for part in np.split(np.arange(len(ids)), np.flatnonzero(~continues) + 1):
        if len(part):
            first = part[0]
            text = tokenizer.decode_inside(ids[part]) if is_ordinary[first] else tokenizer.decode(ids[part])
            found.append(Run(text, str(kinds[first]), bool(scored[first])))
    return found


def visible(text: str) -> list[tuple[str, bool]]:
    """Splits `text` into (piece, is_mark). A mark replaces an unprintable character.

    A newline or a tab follows its mark. Other unprintable characters, such as those that change the direction of
    writing, become Python's escape sequences.
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
    """Returns the kind of each id, str [size + 1]; the last element is the kind of ids outside the vocabulary."""
    kinds = np.full(vocab.size + 1, "special", "U8")
    kinds[vocab.content_start : vocab.content_end] = "text"
    kinds[vocab.sentinels] = "sentinel"
    kinds[[id_ for _, id_ in vocab.modes]] = "mode"
    kinds[[id_ for id_ in [vocab.mask] if id_ >= 0]] = "mask"
    kinds[vocab.eos] = "eos"
    return kinds
