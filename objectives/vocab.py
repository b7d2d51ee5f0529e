"""The special ids of a vocabulary. Nothing else in the project knows a literal id."""

import dataclasses

import numpy as np

from objectives.errors import ConfigError


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
