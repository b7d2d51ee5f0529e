"""The interface of tokenizers, and the encoding and decoding of special tokens."""

import abc
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from contract.errors import ConfigError
from contract.vocab import BLANK, SPACE, Vocab


class Tokenizer(abc.ABC):
    """Base class of the tokenizers, which encodes and decodes special tokens.

    Attributes:
      vocab: the special ids.
      adds_pad: whether the vocabulary has a pad id that the tokenizer's model does not have.
      dummy_bytes: how many bytes of the tokens of every text are not in the text: 1 for a model that puts a space
        before each text or after it (SentencePiece's add_dummy_prefix), otherwise 0.
      fingerprint: changes whenever `encode` would return other ids. It does not depend on appended special tokens, so a
        token store stays valid when these change.
      files: name -> contents of the files that the tokenizer was read from, the one that data.tokenizer names last; {}
        for a tokenizer without files. A copy of these files in any folder is the same tokenizer.
    """

    vocab: Vocab
    adds_pad: bool = False
    dummy_bytes: int = 0
    fingerprint: str
    files: Mapping[str, bytes] = MappingProxyType({})
    _before_special: str = ""  # between a special token and the token before it, in decoded text
    _letter: int = -1  # an ordinary token that is a letter; -1 if tokens are decoded alike everywhere in a text

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Raw text -> int32 [n]. Text such as "</s>" is ordinary; the only special id is unk.

        Raises ConfigError for a lone surrogate, which is how Python represents a non-UTF-8 byte.
        """

    @abc.abstractmethod
    def num_bytes(self, ids: np.ndarray) -> int:
        """The number of UTF-8 bytes that `ids`, int [...], spell, with the dummy bytes of texts. For bits per byte.

        Special ids have 0 bytes. So has unk, whose text is unknown: TokenStore.bytes_covered is the share of a text's
        bytes that its tokens spell.
        """

    @abc.abstractmethod
    def piece(self, id_: int) -> str:
        """The text of an ordinary token, by which vocabularies are compared.

        It is the UTF-8 text that the token spells, "<0x0A>" for a token that is a single byte, and WordPiece's
        own text ("##ing") for its tokens. Bytes that are only a part of a character are escaped.
        """

    @abc.abstractmethod
    def _decode_content(self, ids: np.ndarray) -> str:
        """Ordinary tokens, int [n], at the beginning of a text -> text."""

    def _decode_inside(self, ids: np.ndarray) -> str:
        """Ordinary tokens, int [n], after other tokens -> text. Models drop the space at the beginning of a text."""
        if self._letter < 0:
            return self._decode_content(ids)
        letter = np.array([self._letter])
        return self._decode_content(np.concatenate([letter, ids])).removeprefix(self._decode_content(letter))

    def takes_space_before(self, special: int) -> bool:
        """Whether the mask or a sentinel, id `special`, in a prompt hides the space before it too.

        It does where words begin with their space: "the [MASK] fox" is "the", [MASK], " fox", as in training, where the
        mask replaces " quick". Hugging Face calls this lstrip.
        """
        vocab = self.vocab
        marks = np.frombuffer(vocab.marks, np.uint8)
        is_placeholder = special == vocab.mask or special in vocab.sentinel_ids
        return bool(is_placeholder and (((marks & SPACE) > 0) & ((marks & BLANK) == 0)).any())

    def without_space_before(self, text: str, special: int) -> str:
        """Returns the text before the special token `special` in a prompt, without the space that the token hides."""
        return text.removesuffix(" ") if self.takes_space_before(special) else text

    def encode_with_specials(self, text: str) -> np.ndarray:
        """Text with special tokens as in Vocab.ids_by_name() ("<extra_id_0>", "[MASK]") -> int32 [n].

        Raises ConfigError for a lone surrogate.
        """
        check_unicode(text)
        ids = self.vocab.ids_by_name()
        longest_first = sorted(ids, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
        pieces = [np.array([ids[part]], np.int32) if part in ids else self.encode(part) for part in parts if part]
        return np.concatenate([np.zeros(0, np.int32), *pieces])

    def decode(self, ids: np.ndarray) -> str:
        """Ids, int [n] -> text.

        Special ids become their names, ids outside the vocabulary "<id N>", and bytes that are not valid UTF-8 U+FFFD.
        """
        ids = np.asarray(ids).reshape(-1)
        if not ids.size:
            return ""
        names = self.vocab.names()
        is_content = (ids >= self.vocab.content_start) & (ids < self.vocab.content_end)
        runs = np.split(ids, np.flatnonzero(np.diff(is_content)) + 1)
        text = []
        for k, run in enumerate(runs):
            if self.vocab.content_start <= run[0] < self.vocab.content_end:
                text.append(self._decode_inside(run) if k else self._decode_content(run))
                continue
            for id_ in run.tolist():
                text.append((self._before_special if text else "") + names.get(id_, f"<id {id_}>"))
        return "".join(text)

    def decode_inside(self, ids: np.ndarray) -> str:
        """Ids, int [n], after other tokens -> text: as `decode`, with the space at the start."""
        is_content = len(ids) and self.vocab.content_start <= ids[0] < self.vocab.content_end
        letter = np.array([self._letter])
        if self._letter < 0 or not is_content:
            return self.decode(ids)
        return self.decode(np.concatenate([letter, ids])).removeprefix(self.decode(letter))


def letter_token(content: Mapping[int, bytes]) -> int:
    """Returns a token that is a letter or letters of ASCII, the shortest; -1 if there is none."""
    letters = [(len(text), id_) for id_, text in content.items() if text.isalpha()]
    return min(letters, default=(0, -1))[1]


def check_unicode(text: str) -> None:
    """Raises ConfigError for a text with a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the text {text[:40]!r} is not valid UTF-8 at character {error.start}") from None
