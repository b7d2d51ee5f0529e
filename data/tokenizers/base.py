"""The interface of tokenizers, and the encoding and decoding of special tokens."""

import abc
import functools
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.vocab import BLANK, SPACE, Vocab
from data.tokenizers.specials import ModelTokens, make_vocab


class Tokenizer(abc.ABC):
    """Base class of the tokenizers, which encodes and decodes special tokens.

    Attributes:
      vocab: the special ids.
      adds_pad: whether the vocabulary has a pad id that the tokenizer's model does not have.
      fingerprint: changes whenever `encode` would return other ids. It does not depend on appended special tokens, so a
        token store stays valid when these change.
      files: name -> contents of the files that the tokenizer was read from, the one that data.tokenizer names last; {}
        for a tokenizer without files. A copy of these files in any folder is the same tokenizer.
    """

    vocab: Vocab
    adds_pad: bool
    fingerprint: str
    files: Mapping[str, bytes] = MappingProxyType({})
    _before_special: str = ""  # between a special token and the token before it, in decoded text
    _letter: int  # an ordinary token that is a letter or letters; -1 if there is none

    def _set_tokens(self, tokens: ModelTokens, where: str, special_tokens: Mapping[str, Any]) -> None:
        """Sets the vocabulary and the attributes that follow from it.

        special_tokens: the fields of config.data, as for `make_vocab`, which has the errors.
        """
        self.vocab = make_vocab(tokens, where, **special_tokens)
        self.adds_pad = "pad" not in tokens.roles and special_tokens.get("append_special_tokens", True)
        self._content, self._token_bytes = tokens.content, np.zeros(self.vocab.size, np.int64)
        for id_, text in tokens.content.items():
            self._token_bytes[id_] = len(text)
        # The shortest token of ASCII letters.
        letters = [(len(text), id_) for id_, text in tokens.content.items() if text.isalpha()]
        self._letter = min(letters, default=(0, -1))[1]

    @functools.cached_property
    def dummy_bytes(self) -> int:
        """How many bytes of the tokens of every text are not in the text.

        1 for a model that puts a space before each text or after it (SentencePiece's add_dummy_prefix), otherwise 0.
        """
        # Of one character that is a word, whose only space can be the one that the model adds.
        return int(any(b" " in self._content.get(id_, b"") for id_ in self.encode("a").tolist()))

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Raw text -> int32 [n]. Text such as "</s>" is ordinary; the only special id is unk.

        Raises ConfigError for a lone surrogate, which is how Python represents a non-UTF-8 byte.
        """

    def num_bytes(self, ids: np.ndarray) -> int:
        """The number of UTF-8 bytes that `ids`, int [...], spell, with the dummy bytes of texts. For bits per byte.

        Special ids have 0 bytes. So has unk, whose text is unknown: TokenStore.bytes_covered is the share of a text's
        bytes that its tokens spell.
        """
        return int(self._token_bytes[ids].sum())

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

    def encode_with_specials(
        self, text: str, special_tokens: Collection[int] | np.ndarray | None = None, *, where: str = ""
    ) -> np.ndarray:
        """Text with special tokens -> int32 [n].

        The names are those of Vocab.ids_by_name: "<extra_id_0>", "[MASK]", and "<mask>" if the tokenizer's model has
        this name. Text that looks like another special token is ordinary text, as in training. A space before a mask or
        a sentinel is part of what the token hides, where the tokenizer's words begin with their space
        (`takes_space_before`).

        special_tokens: the ids whose names are special tokens; None: all.
        where: names the text in messages.

        Raises ConfigError for text that is not valid Unicode.
        """
        check_unicode(text, where)
        ids = self.vocab.ids_by_name()
        if special_tokens is not None:
            ids = {name: id_ for name, id_ in ids.items() if id_ in special_tokens}
        if not ids:
            return self.encode(text)
        longest_first = sorted(ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)  # text and special tokens alternate
        for k in range(0, len(parts) - 1, 2):
            parts[k] = self.without_space_before(parts[k], ids[parts[k + 1]])
        encoded = [[ids[part]] if k % 2 else self.encode(part) for k, part in enumerate(parts)]
        return np.concatenate(encoded).astype(np.int32)

    def decode(self, ids: np.ndarray, *, inside: bool = False) -> str:
        """Ids, int [n] -> text. inside: they follow other tokens, so that a space at their start is kept.

        Special ids become their names, ids outside the vocabulary "<id N>", and bytes that are not valid UTF-8 U+FFFD.
        """
        ids = np.asarray(ids).reshape(-1)
        if not ids.size:
            return ""
        names = self.vocab.names()
        is_content = (ids >= self.vocab.content_start) & (ids < self.vocab.content_end)
        text = []
        for run in np.split(ids, np.flatnonzero(np.diff(is_content)) + 1):
            if self.vocab.content_start <= run[0] < self.vocab.content_end:
                text.append(self._decode_inside(run) if text or inside else self._decode_content(run))
                continue
            for id_ in run.tolist():
                text.append((self._before_special if text else "") + names.get(id_, f"<id {id_}>"))
        return "".join(text)


def check_unicode(text: str, where: str = "") -> None:
    """Raises ConfigError for a text with a lone surrogate. where: names the text; "": by its beginning."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = where or f"the text {text[:40]!r}"
        raise ConfigError(f"{where} is not valid UTF-8 at character {error.start}") from None
