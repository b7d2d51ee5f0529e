"""The special ids of a vocabulary. Nothing else in the project knows a literal id."""

import dataclasses

import numpy as np

from contract.errors import ConfigError

# What the text of an ordinary token is like, where an objective goes by that. Bits of Vocab.marks.
STOP = 1  # ends in ".", "!" or "?"
NEWLINE = 2  # ends in a line's end
SPACE = 4  # begins with whitespace
CONTINUATION = 8  # a byte that carries on a UTF-8 character begun before
BLANK = 16  # nothing but whitespace
PUNCTUATION = 32  # begins with ASCII punctuation


@dataclasses.dataclass(frozen=True)
class Vocab:
    """Ids of a tokenizer's vocabulary, all below `size`.

    Sentinels take the highest ids, highest first, as in T5: sentinel k is `size - 1 - k`.
    """

    size: int
    pad: int
    eos: int
    unk: int
    mask: int
    cls: int
    sep: int
    bos: int
    modes: tuple[tuple[str, int], ...]  # mode token -> id, in the config's order
    num_sentinels: int
    content_start: int  # ids of raw text are content_start <= id < content_end
    content_end: int
    marks: bytes = dataclasses.field(repr=False)  # [size], for each id the bits above; 0 for special ids

    def marked(self, tokens: np.ndarray, mark: int) -> np.ndarray:
        """bool, of tokens' shape: where the tokens, ids int, have any bit of `mark`."""
        return (np.frombuffer(self.marks, np.uint8) & mark).astype(bool).take(tokens)

    def sentinel(self, k):
        """Id of the k-th sentinel (int or integer array). The caller has checked k < num_sentinels."""
        return self.size - 1 - k

    @property
    def sentinels(self) -> np.ndarray:
        """int32 [num_sentinels], in the order in which spans take them."""
        return self.sentinel(np.arange(self.num_sentinels, dtype=np.int32))

    def mode(self, name: str) -> int:
        """Id of a mode token. Raises ConfigError for a name the vocabulary does not have."""
        ids = dict(self.modes)
        if name not in ids:
            raise ConfigError(
                f"mode token {name!r} is not in data.mode_tokens={tuple(ids)}: add it there or name one of those"
            )
        return ids[name]

    def names(self) -> dict[int, str]:
        """How each special id is written in decoded text."""
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
