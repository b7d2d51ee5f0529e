"""The special ids of a vocabulary. No other module of the project contains a literal id."""

import dataclasses
import functools
from typing import Literal, TypeVar, get_args

import numpy as np

from contract.errors import ConfigError

Index = TypeVar("Index", int, np.ndarray)
DecoderStart = Literal["pad", "bos", "eos"]  # fields of Vocab
DECODER_STARTS: tuple[DecoderStart, ...] = get_args(DecoderStart)

# Bits of Vocab.marks: properties of an ordinary token's text, which some objectives use.
STOP = 1  # ends in ".", "!" or "?"
NEWLINE = 2  # ends in a line break
SPACE = 4  # begins with whitespace
CONTINUATION = 8  # begins with a byte that continues a UTF-8 character
BLANK = 16  # whitespace only
PUNCTUATION = 32  # begins with ASCII punctuation

# Fields of Vocab -> the name of the special token, if the tokenizer's model has no name for it.
GENERAL_NAMES = {
    "pad": "<pad>",
    "eos": "</s>",
    "unk": "<unk>",
    "mask": "[MASK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "bos": "<s>",
}


def sentinel_name(k: int) -> str:
    """The name of the k-th sentinel, as T5 writes it."""
    return f"<extra_id_{k}>"


@dataclasses.dataclass(frozen=True)
class Vocab:
    """The ids of a tokenizer's vocabulary, all below `size`.

    A special token that does not exist has the id -1; eos and pad always exist. Special tokens may share an id: in BART
    bos and cls do, in BERT eos and sep. pad is eos where the vocabulary has no other id for pad. No code infers padding
    from ids: segment ids and loss weights define it.
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
    sentinel_ids: tuple[int, ...]  # in the order in which spans use them
    content_start: int  # ordinary tokens, which are those of raw text: content_start <= id < content_end
    content_end: int
    marks: bytes = dataclasses.field(repr=False)  # [size], STOP, NEWLINE, ... of each id; 0 for special ids
    # Special id -> its text in the tokenizer's model, also of special tokens without a field here; none for the special
    # tokens that this project has appended.
    own_names: tuple[tuple[int, str], ...] = dataclasses.field(repr=False)
    decoder_start_token: DecoderStart = "pad"  # data.decoder_start_token

    def marked(self, tokens: np.ndarray, mark: int) -> np.ndarray:
        """bool [...]: where `tokens`, int [...], have at least one bit of `mark`."""
        return (np.frombuffer(self.marks, np.uint8) & mark).astype(bool).take(tokens)

    @property
    def decoder_start(self) -> int:
        """The id that decoders read at the start of each segment; T5's rule is pad. -1 if there is no such token."""
        return getattr(self, self.decoder_start_token)

    @property
    def num_sentinels(self) -> int:
        """The number of sentinels."""
        return len(self.sentinel_ids)

    def sentinel(self, k: Index) -> Index:
        """The id of the k-th sentinel. Raises IndexError where k, int or int array, is not below num_sentinels."""
        return self.sentinel_ids[k] if isinstance(k, int) else self.sentinels[k]

    @functools.cached_property
    def sentinels(self) -> np.ndarray:
        """The ids of all sentinels, int32 [num_sentinels], in the order in which spans use them."""
        ids = np.array(self.sentinel_ids, np.int32)
        ids.flags.writeable = False  # shared by all callers
        return ids

    def mode(self, name: str) -> int:
        """The id of a mode token. Raises ConfigError for a name that is not in the vocabulary."""
        ids = dict(self.modes)
        if name not in ids:
            raise ConfigError(
                f"mode token {name!r} is none of {tuple(ids)}: add it to data.mode_tokens, or set another mode"
            )
        return ids[name]

    def names(self) -> dict[int, str]:
        """Special id -> its name in decoded text: the model's own, such as "<mask>", or ours, such as "[MASK]"."""
        return {id_: name for name, id_ in self._general_names()} | dict(self.own_names)

    def ids_by_name(self) -> dict[str, int]:
        """Names in prompts -> special id.

        These are the names of `names()` and, for each special token, its general name: "[MASK]" is the mask of every
        vocabulary that has one. A text that is both is the former.
        """
        return dict(self._general_names()) | {name: id_ for id_, name in self.names().items()}

    def _general_names(self) -> list[tuple[str, int]]:
        """The general name and the id of each special token. Of tokens that share an id, pad is first and eos last."""
        roles = [(name, getattr(self, role)) for role, name in GENERAL_NAMES.items() if role not in ("pad", "eos")]
        named = [("<pad>", self.pad), *roles, ("</s>", self.eos), *self.modes]
        named += [(sentinel_name(k), id_) for k, id_ in enumerate(self.sentinel_ids)]
        return [(name, id_) for name, id_ in named if id_ >= 0]
