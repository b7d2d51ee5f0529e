"""Tokenizers: UTF-8 bytes with ByT5's ids, or a SentencePiece model. The special ids of both are a Vocab."""

import hashlib
import re
import string
from pathlib import Path

import numpy as np

from contract.errors import ConfigError
from contract.vocab import BLANK, CONTINUATION, NEWLINE, PUNCTUATION, SPACE, STOP, Vocab
from data.config import CorpusConfig

# Flags of SentencePiece's trainer with which every text round-trips. Without the last four, characters that the model
# has no piece for are unknown tokens, line ends and runs of spaces are lost, and a space is put before every text. See
# docs/tokenizers.md.
SENTENCEPIECE_FLAGS = (
    "--pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1 "
    "--byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false "
    "--add_dummy_prefix=false"
)
_PUNCTUATION = tuple(mark.encode() for mark in string.punctuation)


class Tokenizer:
    """Base class of the tokenizers, which encodes and decodes special tokens.

    Attributes:
      vocab: the special ids.
      adds_pad: whether the vocabulary has a pad id that the tokenizer's model does not have.
      dummy_bytes: how many bytes of the tokens of every text are not in the text: 1 for a SentencePiece model that puts
        a space before each text or after it (add_dummy_prefix), otherwise 0.
      fingerprint: changes whenever `encode` would return other ids. It does not depend on mode tokens and sentinels, so
        a token store stays valid when these change.
    """

    vocab: Vocab
    adds_pad: bool = False
    dummy_bytes: int = 0
    fingerprint: str

    def encode(self, text: str) -> np.ndarray:
        """Raw text -> int32 [n]. Text such as "</s>" is ordinary; the only special id is SentencePiece's unk."""
        raise NotImplementedError

    def num_bytes(self, ids: np.ndarray) -> int:
        """The number of UTF-8 bytes that `ids`, int [...], spell, with the dummy bytes of texts. For bits per byte.

        Special ids have 0 bytes. So has unk, whose text is unknown: TokenStore.bytes_covered is the share of a text's
        bytes that its tokens spell.
        """
        raise NotImplementedError

    def _decode_content(self, ids: np.ndarray) -> str:
        raise NotImplementedError

    def encode_with_specials(self, text: str) -> np.ndarray:
        """Text with special tokens as in Vocab.names() ("<extra_id_0>", "[MASK]") -> int32 [n].

        Raises ConfigError for a lone surrogate, which is how Python represents a non-UTF-8 byte of an argument.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"the text {text[:40]!r} is not valid UTF-8 at character {error.start}") from None
        ids = {name: id_ for id_, name in self.vocab.names().items()}
        longest_first = sorted(ids, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
        pieces = [np.array([ids[part]], np.int32) if part in ids else self.encode(part) for part in parts if part]
        return np.concatenate([np.zeros(0, np.int32), *pieces])

    def decode(self, ids: np.ndarray) -> str:
        """Ids, int [n] -> text.

        Special ids become their names, ids outside the vocabulary "<id N>", and bytes that are not valid UTF-8 U+FFFD.
        At the start of a text, the space that SentencePiece adds there (add_dummy_prefix) is omitted.
        """
        ids = np.asarray(ids).reshape(-1)
        if not ids.size:
            return ""
        names = self.vocab.names()
        is_content = (ids >= self.vocab.content_start) & (ids < self.vocab.content_end)
        runs = np.split(ids, np.flatnonzero(np.diff(is_content)) + 1)
        text = []
        for run in runs:
            if self.vocab.content_start <= run[0] < self.vocab.content_end:
                text.append(self._decode_inside(run) if text else self._decode_content(run))
            else:
                text.extend(names.get(int(id_), f"<id {id_}>") for id_ in run)
        return "".join(text)

    def decode_inside(self, ids: np.ndarray) -> str:
        """Returns what `ids`, int [n], add to a text before them: as `decode`, with the space at the start."""
        letter = self.encode("a")
        return self.decode(np.concatenate([letter, ids])).removeprefix(self.decode(letter))

    def _decode_inside(self, ids: np.ndarray) -> str:
        letter = self.encode("a")
        return self._decode_content(np.concatenate([letter, ids])).removeprefix(self._decode_content(letter))


class ByteTokenizer(Tokenizer):
    """ByT5's ids: pad 0, eos 1, unk 2, byte b is b + 3; then mask, cls, sep, bos, the mode tokens and the sentinels.

    Source: Xue et al., ByT5 (TACL 2022), and its tokenizer. Deviation: ByT5's 125 sentinels follow the bytes directly.
    """

    def __init__(self, *, num_sentinels: int, mode_tokens: tuple[str, ...]):
        """Raises ConfigError for an invalid data.num_sentinels or data.mode_tokens."""
        content_end = 3 + 256
        ids = dict(pad=0, eos=1, unk=2, bos=-1, content_start=3, content_end=content_end)
        texts = {byte + 3: bytes([byte]) for byte in range(256)}
        self.vocab = _add_specials(num_sentinels, mode_tokens, texts, first_free=content_end, **ids)
        self.fingerprint = "byte"

    def encode(self, text: str) -> np.ndarray:
        ids = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)
        ids += self.vocab.content_start
        return ids

    def num_bytes(self, ids: np.ndarray) -> int:
        return int(((ids >= self.vocab.content_start) & (ids < self.vocab.content_end)).sum())

    def _decode_content(self, ids: np.ndarray) -> str:
        return (ids - self.vocab.content_start).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with its own ids for eos and unk, and for pad and bos if the model has them.

    A model without pad, such as Llama's, gets a pad id right after its pieces, as in Stanford Alpaca's train.py. mask,
    cls, sep, bos (if the model has none), the mode tokens and the sentinels follow. Pieces of the model with the name
    <extra_id_k> are ordinary pieces, because Vocab requires the sentinels to be the highest ids. A model that
    normalizes text or lacks characters loses them: decode(encode(text)) then differs from the text.
    """

    def __init__(self, path: str, *, num_sentinels: int, mode_tokens: tuple[str, ...]):
        """Loads the model at `path`.

        Raises ConfigError where sentencepiece is not installed, where the model is missing or unreadable, where it has
        no EOS id, and where a special id is between the ids of its pieces.
        """
        where = f"data.tokenizer={path!r}"
        try:
            import sentencepiece
        except ImportError:
            raise ConfigError(f"{where} needs SentencePiece: pip install -e '.[sentencepiece]'") from None
        try:
            model = Path(path).expanduser().read_bytes()
            self._model = sentencepiece.SentencePieceProcessor()
            self._model.LoadFromSerializedProto(model)  # unlike the constructor, raises for an empty model
        except OSError as error:
            raise ConfigError(f"{where} cannot be read ({error.strerror}): give the path of a .model file") from None
        except RuntimeError:
            raise ConfigError(f"{where} is not a SentencePiece model: give the path of a .model file") from None
        size = self._model.get_piece_size()
        own = {name: getattr(self._model, f"{name}_id")() for name in ("pad", "eos", "unk", "bos")}
        text_ids = np.array([id_ for id_ in range(size) if self._is_text(id_)])
        between = [name for name, id_ in own.items() if text_ids[0] <= id_ <= text_ids[-1]]
        has_eos = own["eos"] >= 0
        if not has_eos or between:
            problem = "has no eos id" if not has_eos else f"has its {between[0]} id between its pieces"
            raise ConfigError(f"{where} {problem}: train it with {SENTENCEPIECE_FLAGS}")
        self.adds_pad = own["pad"] < 0
        texts = {id_: self._text(id_) for id_ in text_ids.tolist()}
        self.vocab = _add_specials(
            num_sentinels,
            mode_tokens,
            texts,
            first_free=size,
            **own,
            content_start=int(text_ids[0]),
            content_end=int(text_ids[-1]) + 1,
        )
        self.fingerprint = "sentencepiece:" + hashlib.blake2b(model, digest_size=8).hexdigest()
        self._piece_bytes = np.zeros(self.vocab.size, np.int64)
        for id_, text in texts.items():
            self._piece_bytes[id_] = len(text)
        # Of one character that is a word, whose only space can be the one that the model adds.
        self.dummy_bytes = int(any(b" " in texts.get(id_, b"") for id_ in self.encode("a").tolist()))

    def _is_text(self, id_: int) -> bool:
        model = self._model
        return not (model.is_control(id_) or model.is_unknown(id_) or model.is_unused(id_))

    def _text(self, id_: int) -> bytes:
        piece = self._model.id_to_piece(id_)
        if self._model.is_byte(id_):
            return bytes([int(piece.removeprefix("<0x").removesuffix(">"), 16)])
        return piece.replace("\u2581", " ").encode("utf-8")

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._model.encode(text, out_type=int, add_bos=False, add_eos=False), np.int32)

    def num_bytes(self, ids: np.ndarray) -> int:
        return int(self._piece_bytes[ids].sum())

    def _decode_content(self, ids: np.ndarray) -> str:
        return self._model.decode(ids.tolist())


def make_tokenizer(corpus: CorpusConfig) -> Tokenizer:
    """The tokenizer of `data.tokenizer`: "byte", or the path of a SentencePiece .model file.

    Raises ConfigError for any other value, and as the two tokenizers do.
    """
    if corpus.tokenizer == "byte":
        return ByteTokenizer(num_sentinels=corpus.num_sentinels, mode_tokens=corpus.mode_tokens)
    if corpus.tokenizer.endswith(".model"):
        return SentencePieceTokenizer(
            corpus.tokenizer, num_sentinels=corpus.num_sentinels, mode_tokens=corpus.mode_tokens
        )
    raise ConfigError(f"data.tokenizer={corpus.tokenizer!r} must be 'byte' or the path of a SentencePiece .model file")


def _add_specials(
    num_sentinels: int,
    mode_tokens: tuple[str, ...],
    texts: dict[int, bytes],
    *,
    first_free: int,
    pad: int,
    bos: int,
    **ids: int,
) -> Vocab:
    """A Vocab whose other special tokens have the ids from `first_free` on.

    In this order: pad (if `pad` is -1), mask, cls, sep, bos (if `bos` is -1), mode tokens, sentinels.

    texts: the UTF-8 bytes of each ordinary token, by id.
    """
    if num_sentinels < 0:
        raise ConfigError(f"data.num_sentinels={num_sentinels} must not be negative")
    if pad < 0:
        pad, first_free = first_free, first_free + 1
    mask, cls, sep = range(first_free, first_free + 3)
    next_free = first_free + 3
    if bos < 0:
        bos, next_free = next_free, next_free + 1
    modes = tuple((name, next_free + k) for k, name in enumerate(mode_tokens))
    size = next_free + len(modes) + num_sentinels
    vocab = Vocab(
        size=size,
        pad=pad,
        mask=mask,
        cls=cls,
        sep=sep,
        bos=bos,
        modes=modes,
        num_sentinels=num_sentinels,
        marks=bytes(_marks(texts[id_]) if id_ in texts else 0 for id_ in range(size)),
        **ids,
    )
    names = list(vocab.names().values())
    for name in mode_tokens:
        if not name or names.count(name) > 1:
            raise ConfigError(f"data.mode_tokens={mode_tokens}: {name!r} is empty or the name of another token")
    return vocab


def _marks(text: bytes) -> int:
    """The bits of Vocab.marks for a token. text: the token's UTF-8 bytes, which may be part of a character."""
    return (
        STOP * text.endswith((b".", b"!", b"?"))
        | NEWLINE * text.endswith((b"\n", b"\r"))
        | SPACE * text[:1].isspace()
        | CONTINUATION * (len(text) == 1 and 0x80 <= text[0] < 0xC0)
        | BLANK * text.isspace()
        | PUNCTUATION * text.startswith(_PUNCTUATION)
    )
