"""Trains tokenizers: unigram and BPE by SentencePiece, byte-level BPE and WordPiece by Hugging Face's `tokenizers`."""

import dataclasses
import importlib.util
import io
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from contract.errors import ConfigError

Kind = Literal["unigram", "bpe", "wordpiece"]

# Characters of a text that a trainer reads at once. SentencePiece skips longer lines than its limit without an error,
# and merges in a word of a million letters take time that is quadratic in its length.
_PART = 4096
_BERT = ("[CLS]", "[SEP]", "[MASK]")  # which every WordPiece tokenizer has
_COVERAGE = 0.9995  # the share of the characters of the text that are in the vocabulary, the most frequent ones
# SentencePiece skips a line with U+2585, which it reserves.
_LINE_END = re.compile("[\n\u2585]")


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What is trained.

    Attributes:
      kind: the model.
      is_json: whether the file is a tokenizer.json of Hugging Face or a SentencePiece .model.
      vocab_size: the number of ids in the file, with all special tokens.
      special_tokens: their names, without those that every tokenizer of the kind has (pad, EOS, unk).
    """

    kind: Kind
    is_json: bool
    vocab_size: int
    special_tokens: tuple[str, ...]

    def all_special_tokens(self) -> tuple[str, ...]:
        """The names of all special tokens of the file, in the order of their ids, which are the first."""
        if self.kind == "wordpiece":
            return ("[PAD]", "[UNK]", *_BERT, *(name for name in self.special_tokens if name not in _BERT))
        own = ("<pad>", "</s>") if self.is_json else ("<pad>", "</s>", "<unk>")
        return own + self.special_tokens


def check_options(options: TrainingOptions) -> None:
    """Raises ConfigError for options that no library can train, and where the library is not installed."""
    kind, is_json = options.kind, options.is_json
    if is_json != (kind == "wordpiece") and kind != "bpe":
        trained, end = ("SentencePiece", ".model") if kind == "unigram" else ("Hugging Face's tokenizers", ".json")
        raise ConfigError(f"--kind={kind} is trained by {trained}: write --out=NAME{end}")
    names = options.all_special_tokens()
    for name in options.special_tokens:
        # Trainers divide text at the brackets of most such names, or take special tokens out of the text.
        if not re.fullmatch(r"<[^\s<>]+>|\[[^\s\[\]]+\]", name) or names.count(name) > 1:
            raise ConfigError(
                f"--special_tokens: {name!r} must be a new name in brackets, such as [CLS] or <fim_prefix>"
            )
    smallest = len(names) + 256 * (kind != "wordpiece") + 1
    if options.vocab_size < smallest:
        raise ConfigError(
            f"--vocab_size={options.vocab_size} must be at least {smallest}: the special tokens, the bytes and a piece"
        )
    library, extra = ("tokenizers", "huggingface") if is_json else ("sentencepiece", "sentencepiece")
    if importlib.util.find_spec(library) is None:
        raise ConfigError(
            f"--kind={kind} with --out=NAME{'.json' if is_json else '.model'} needs {library}: "
            f"pip install -e '.[{extra}]'"
        )


def train(texts: Sequence[str], options: TrainingOptions) -> bytes:
    """Returns the contents of the tokenizer's file. Equal texts and options give equal contents.

    Raises ConfigError for a vocabulary that is too large or too small for the texts.
    """
    if not options.is_json:
        return _sentencepiece(texts, options)
    return _wordpiece(texts, options) if options.kind == "wordpiece" else _byte_level_bpe(texts, options)


def _sentencepiece(texts: Sequence[str], options: TrainingOptions) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts),
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocab_size,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            control_symbols=list(options.special_tokens),
            byte_fallback=True,  # without it, characters without a piece are unknown tokens
            character_coverage=_COVERAGE,
            required_chars="\u2581",  # the space; as bytes it would be decoded as this character
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,  # runs of spaces are text
            add_dummy_prefix=False,  # no space before a text
            allow_whitespace_only_pieces=True,
            max_sentence_length=4 * _PART,  # bytes
            num_threads=16,  # the scores depend on it, and not on the number of cores
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if too_large := re.search(r"Vocabulary size too high .* <= (\d+)", reason):
            raise _too_large(options, int(too_large[1])) from None
        if too_small := re.search(r"smaller than required_chars. \d+ vs (\d+)", reason):
            raise _too_small(options, int(too_small[1])) from None
        raise ConfigError(f"--vocab_size={options.vocab_size}: SentencePiece cannot train: {reason}") from None
    return model.getvalue()


def _byte_level_bpe(texts: Sequence[str], options: TrainingOptions) -> bytes:
    """GPT-2's byte-level BPE, without a space before a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(options.all_special_tokens()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_parts(texts), trainer)
    return _as_json(tokenizer, options)


def _wordpiece(texts: Sequence[str], options: TrainingOptions) -> bytes:
    """BERT's WordPiece without changes of case, with the pieces that the merges of BPE make."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def untrained(vocab: dict[str, int]) -> Any:
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        return tokenizer

    # Without `inside`, the trainer would give characters within words their ids in the order of a hash map, which
    # differs between processes, and would choose between merges of equal frequency by these ids.
    alphabet = _alphabet(texts)
    inside = [f"##{character}" for character in alphabet if not _is_punctuation(character)]
    specials = list(options.all_special_tokens())
    required = len(specials) + len(inside) + len(alphabet)
    if required > options.vocab_size:
        raise _too_small(options, required)
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.vocab_size,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=specials + inside,
        show_progress=False,
    )
    tokenizer = untrained({})
    tokenizer.train_from_iterator(_parts(texts), trainer)
    tokenizer = untrained(tokenizer.get_vocab())  # in which `inside` are ordinary pieces
    tokenizer.add_special_tokens(specials)
    return _as_json(tokenizer, options)


def _as_json(tokenizer: Any, options: TrainingOptions) -> bytes:
    if (largest := tokenizer.get_vocab_size()) < options.vocab_size:
        raise _too_large(options, largest)
    return tokenizer.to_str(pretty=True).encode()


def _alphabet(texts: Sequence[str]) -> list[str]:
    """Returns the most frequent characters of words, which make up `_COVERAGE` of them."""
    counts = Counter(character for text in texts for character in text if not character.isspace())
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    covered = np.cumsum([counts[character] for character in ordered])
    return sorted(ordered[: np.searchsorted(covered, _COVERAGE * counts.total()) + 1])


def _is_punctuation(character: str) -> bool:
    """Returns whether BERT's pre-tokenizer makes a word of this character alone."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of the texts for SentencePiece, long ones in parts."""
    for text in texts:
        yield from _parts(line for line in _LINE_END.split(text) if line)


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, long ones in parts that end before white space where there is some."""
    for text in texts:
        start = 0
        while len(text) - start > _PART:
            stop = start + _PART
            space = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
            end = space if space > 0 else stop
            yield text[start:end]
            start = end
        if start < len(text):
            yield text[start:]


def _too_large(options: TrainingOptions, largest: int) -> ConfigError:
    return ConfigError(
        f"--vocab_size={options.vocab_size} is too large for this text, whose largest possible is {largest}: set "
        f"--vocab_size={largest} or less, or train on more text"
    )


def _too_small(options: TrainingOptions, smallest: int) -> ConfigError:
    return ConfigError(
        f"--vocab_size={options.vocab_size} is too small for the special tokens and the characters of this text: "
        f"set --vocab_size={smallest} or more"
    )
