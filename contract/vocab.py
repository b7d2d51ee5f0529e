"""The special ids of a vocabulary. No other module of the project contains a literal id."""

import dataclasses
from typing import TypeVar

import numpy as np

from contract.errors import ConfigError

Index = TypeVar("Index", int, np.ndarray)

# Bits of Vocab.marks: properties of an ordinary token's text, which some objectives use.
STOP = 1  # ends in ".", "!" or "?"
NEWLINE = 2  # ends in a line break
SPACE = 4  # begins with whitespace
CONTINUATION = 8  # a byte that continues a UTF-8 character
BLANK = 16  # whitespace only
PUNCTUATION = 32  # begins with ASCII punctuation


@dataclasses.dataclass(frozen=True)
class Vocab:
    """The ids of a tokenizer's vocabulary, all below `size`.

    Sentinels have the highest ids, in descending order, as in T5: sentinel k is `size - 1 - k`.
    """

    size: int
    pad: int
    eos: int
    unk: int
    mask: int
    cls: int
    sep: int
    bos: int
    modes: tuple[tuple[str, int], ...]  # the name and the id of each mode token, in the order of data.mode_tokens
    num_sentinels: int
    content_start: int  # ordinary tokens, which are those of raw text: content_start <= id < content_end
    content_end: int
    marks: bytes = dataclasses.field(repr=False)  # [size], STOP, NEWLINE, ... of each id; 0 for special ids

    def marked(self, tokens: np.ndarray, mark: int) -> np.ndarray:
        """bool [...]: where `tokens`, int [...], have at least one bit of `mark`."""
        return (np.frombuffer(self.marks, np.uint8) & mark).astype(bool).take(tokens)

    def sentinel(self, k: Index) -> Index:
        """The id of the k-th sentinel; k, int or int array, must be below num_sentinels, which is not checked."""
        return self.size - 1 - k

    @property
    def sentinels(self) -> np.ndarray:
        """The ids of all sentinels, int32 [num_sentinels], in the order in which spans use them."""
        return self.sentinel(np.arange(self.num_sentinels, dtype=np.int32))

    def mode(self, name: str) -> int:
        """The id of a mode token. Raises ConfigError for a name that is not in the vocabulary."""
        ids = dict(self.modes)
        if name not in ids:
            raise ConfigError(
                f"mode token {name!r} is not in data.mode_tokens={tuple(ids)}: add it there, or use one of these"
            )
        return ids[name]

    def names(self) -> dict[int, str]:
        """Special id -> its name in decoded text, such as "</s>" and "<extra_id_0>"."""
        special = {
            self.pad: "<pad>",
            self.eos: "</s>",
            self.unk: "<unk>",
            self.mask: "[MASK]",
            self.cls: "[CLS]",
            self.sep: "[SEP]",
            self.bos: "<s>",
        }
        special |= {id_: name for name, id_ in self.modes}
        return special | {int(id_): f"<extra_id_{k}>" for k, id_ in enumerate(self.sentinels)}
