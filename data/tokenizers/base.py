"""The interface of tokenizers, their special tokens, and the encoding and decoding of these."""

import abc
import dataclasses
import functools
import re
import string
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.vocab import BLANK, CONTINUATION, NEWLINE, PUNCTUATION, SPACE, STOP, Vocab

# Fields of Vocab -> the texts of this special token in published models, where no file of the model's folder names it.
_KNOWN_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
}
# Prefix, suffix and middle of fill-in-the-middle: StarCoder, Qwen, Code Llama.
_FIM_NAMES = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
)
_SENTINEL = re.compile("\u2581?<extra_id_([0-9]+)>")  # mT5's pieces begin with U+2581
_PUNCTUATION = tuple(mark.encode() for mark in string.punctuation)
_APPENDED = ("pad", "eos", "mask", "cls", "sep", "bos")  # in the order of their ids


@dataclasses.dataclass(frozen=True)
class ModelTokens:
    """The tokens of a tokenizer's model.

    Attributes:
      size: the number of ids, with those that are not used.
      roles: field of Vocab -> id, of the model's pad, eos, ... where it has them.
      specials: id -> text, of all special tokens, those of `roles` too.
      content: id -> UTF-8 bytes, of all ordinary tokens. The bytes may be a part of a character.
      begins_word: ids of ordinary tokens that begin a word though their bytes do not begin with whitespace.
    """

    size: int
    roles: Mapping[str, int]
    specials: Mapping[int, str]
    content: Mapping[int, bytes]
    begins_word: frozenset[int] = frozenset()


_SPECIAL_NAMES = frozenset(name for names in (*_KNOWN_NAMES.values(), *_FIM_NAMES) for name in names)


def is_sentinel_name(text: str) -> bool:
    """Returns whether `text` is the name of one of T5's sentinels."""
    return _SENTINEL.fullmatch(text) is not None


def is_special_name(text: str) -> bool:
    """Returns whether `text` is the name of a special token in published models."""
    return text in _SPECIAL_NAMES or is_sentinel_name(text)


def role_of(text: str) -> str | None:
    """Returns the field of Vocab whose special token is `text` in some published models; None if it is of none."""
    return next((role for role, names in _KNOWN_NAMES.items() if text in names), None)


def known_roles(specials: Mapping[int, str]) -> dict[str, int]:
    """Returns field of Vocab -> id, for the special tokens, id -> text, with texts of published models."""
    ids = {text: id_ for id_, text in specials.items()}
    found = {role: next((ids[name] for name in names if name in ids), -1) for role, names in _KNOWN_NAMES.items()}
    return {role: id_ for role, id_ in found.items() if id_ >= 0}


def with_substitutes(roles: Mapping[str, int]) -> dict[str, int]:
    """Returns `roles` with sep as eos and cls as bos, as in BERT, where there is no other."""
    substitutes = {"eos": roles.get("sep"), "bos": roles.get("cls")}
    return {role: id_ for role, id_ in substitutes.items() if id_ is not None} | dict(roles)


def make_vocab(
    model: ModelTokens,
    where: str,
    *,
    num_sentinels: int,
    mode_tokens: tuple[str, ...],
    append_special_tokens: bool = True,
) -> Vocab:
    """Returns a Vocab of the model's special tokens, and of appended ones for those that the model lacks.

    Appended special tokens have the ids from model.size on, in the order pad, eos, mask, cls, sep, bos, mode tokens,
    sentinels, and the sentinels descend, as in T5. A model with sentinels of its own must have as many as
    data.num_sentinels. With data.num_sentinels=3, the fill-in-the-middle tokens of a model without <extra_id_0> are its
    sentinels: prefix, suffix, middle. unk is never appended.

    where: the config field of the tokenizer with its value, for messages. The others are fields of config.data.

    Raises ConfigError for an invalid data.mode_tokens, where the model's sentinels are too few,
    where it has no EOS and none is appended, and for a special id between the ids of ordinary tokens.
    """
    content_start, content_end = min(model.content), max(model.content) + 1
    inside = [text for id_, text in model.specials.items() if content_start <= id_ < content_end]
    if inside:
        raise ConfigError(
            f"{where} has the special token {inside[0]!r} between the ids {content_start} and {content_end - 1} of its "
            "ordinary tokens: train it with all special tokens first, or add them last"
        )
    ids, next_free = {"unk": -1, **model.roles}, model.size
    for role in _APPENDED:
        if role not in ids:
            ids[role] = next_free if append_special_tokens else -1
            next_free += append_special_tokens
    if ids["eos"] < 0:
        raise ConfigError(f"{where} has no EOS, and data.append_special_tokens=False: set it to True")
    if ids["pad"] < 0:
        ids["pad"] = ids["eos"]
    own = {text: id_ for id_, text in model.specials.items()}
    modes = []
    for name in mode_tokens:
        if name in own or append_special_tokens:
            modes.append((name, own.get(name, next_free)))
            next_free += name not in own
    sentinels = _own_sentinels(own, num_sentinels, where)
    if not sentinels and append_special_tokens:
        sentinels = tuple(range(next_free + num_sentinels - 1, next_free - 1, -1))
        next_free += num_sentinels
    vocab = Vocab(
        size=next_free,
        **ids,
        modes=tuple(modes),
        sentinel_ids=sentinels,
        content_start=content_start,
        content_end=content_end,
        marks=bytes(_marks(model, id_) for id_ in range(next_free)),
        own_names=tuple(sorted(model.specials.items())),
    )
    _check_modes(mode_tokens, vocab)
    return vocab


def _own_sentinels(own: Mapping[str, int], count: int, where: str) -> tuple[int, ...]:
    """Returns the ids of the model's first `count` sentinels; none if the model has no sentinel."""
    numbers = {int(match[1]): id_ for text, id_ in own.items() if (match := _SENTINEL.fullmatch(text))}
    found = []
    while len(found) in numbers:
        found.append(numbers[len(found)])
    if found and len(found) < count:
        raise ConfigError(
            f"data.num_sentinels={count}, and {where} has {len(found)} sentinels of its own: set data.num_sentinels="
            f"{len(found)} or less, or use a tokenizer with more, as from data.train_tokenizer --num_sentinels={count}"
        )
    if not found and count == 3:
        return next((tuple(own[name] for name in names) for names in _FIM_NAMES if all(n in own for n in names)), ())
    return tuple(found[:count])


def _check_modes(mode_tokens: tuple[str, ...], vocab: Vocab) -> None:
    """Raises ConfigError for a mode token that is empty, or the name of another special token."""
    others = dataclasses.replace(vocab, modes=(), own_names=()).ids_by_name()
    names = vocab.names()  # made once: a vocabulary may have thousands of sentinels
    roles = {names[id_] for id_ in others.values() if id_ in names}
    for name in mode_tokens:
        if not name or mode_tokens.count(name) > 1 or name in others or name in roles:
            raise ConfigError(f"data.mode_tokens={mode_tokens}: {name!r} is empty or the name of another token")


def _marks(model: ModelTokens, id_: int) -> int:
    """Returns the bits of Vocab.marks for a token, 0 if it is not an ordinary token."""
    text = model.content.get(id_)
    if text is None:
        return 0
    return (
        STOP * text.endswith((b".", b"!", b"?"))
        | NEWLINE * text.endswith((b"\n", b"\r"))
        | SPACE * (text[:1].isspace() or id_ in model.begins_word)
        | CONTINUATION * (text[:1] >= b"\x80" and text[:1] < b"\xc0")
        | BLANK * text.isspace()
        | PUNCTUATION * text.startswith(_PUNCTUATION)
    )


def appended_names(vocab: Vocab) -> dict[int, str]:
    """Returns id -> name of the special tokens that the tokenizer's model does not have, by ascending id."""
    own = dict(vocab.own_names)
    return {id_: name for id_, name in sorted(vocab.names().items()) if id_ not in own}


class Tokenizer(abc.ABC):
    """Base class of the tokenizers, which encodes and decodes special tokens.

    Attributes:
      vocab: the special ids.
      token_bytes: int64 [size of the vocabulary], the UTF-8 bytes that each token spells; 0 for special ones.
      adds_pad: whether the vocabulary has a pad id that the tokenizer's model does not have.
      fingerprint: changes whenever `encode` would return other ids, or another token of the model is EOS, the mask and
        so on. It does not depend on appended special tokens, so a token store stays valid when these change.
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
        self._content, self.token_bytes = tokens.content, np.zeros(self.vocab.size, np.int64)
        for id_, text in tokens.content.items():
            self.token_bytes[id_] = len(text)
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
        return int(self.token_bytes[ids].sum())

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
        # Not removeprefix: where the letter is a byte before bytes that are not UTF-8, it is U+FFFD as they are.
        return self._decode_content(np.concatenate([letter, ids]))[len(self._decode_content(letter)) :]

    def takes_space_before(self, special: int) -> bool:
        """Whether the mask or a sentinel, id `special`, in a prompt hides the space before it too.

        It does where words begin with their space: "the [MASK] fox" is "the", [MASK], " fox", as in training, where the
        mask replaces " quick". Hugging Face calls this lstrip.
        """
        marks = np.frombuffer(self.vocab.marks, np.uint8)
        return bool(self._is_hole(special) and (((marks & SPACE) > 0) & ((marks & BLANK) == 0)).any())

    def _is_hole(self, special: int) -> bool:
        return special == self.vocab.mask or special in self.vocab.sentinel_ids

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
        (`takes_space_before`). The text after it continues the text before it.

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
        encoded = [
            [ids[part]] if k % 2
            else self._encode_inside(part) if k and self._is_hole(ids[parts[k - 1]])
            else self.encode(part)
            for k, part in enumerate(parts)
        ]  # fmt: skip
        return np.concatenate(encoded).astype(np.int32)

    def _encode_inside(self, text: str) -> np.ndarray:
        """Text that continues a text -> int32 [n]: without the space that the model puts before every text.

        A model that puts it after every text (treat_whitespace_as_suffix) keeps it, also before a mask or a sentinel.
        """
        for before in string.punctuation + string.ascii_letters if self.dummy_bytes else "":
            # The space is before this character, which is no part of the tokens of the text. Unknown ones may be.
            start, ids = self.encode(before), self.encode(before + text)
            if self.vocab.unk not in start and np.array_equal(ids[: len(start)], start):
                return ids[len(start) :]
        return self.encode(text)

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
