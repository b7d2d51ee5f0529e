"""Filters of documents: by length, by simple measures of quality, and copies of earlier documents.

| field of data.filters | removes | source |
|---|---|---|
| min_characters, max_characters | texts that are shorter or longer | |
| min_mean_word_length, max_mean_word_length | texts whose words are too short or long on average | Gopher: 3, 10 |
| max_symbol_fraction | texts with more "#", or more ellipses, than this share of the number of words | Gopher: 0.1 |
| min_punctuated_line_fraction | texts with fewer lines that end in a sentence's punctuation | C4 drops other lines |
| max_duplicate_line_fraction | texts with more lines that repeat an earlier one | Gopher: 0.3 |
| max_duplicate_ngram_fraction | texts with more characters in 5-grams of words that occur twice | Gopher: 0.15 |
| min_tokens, max_tokens | texts of fewer or more tokens | |
| remove_duplicates | "exact": copies of earlier texts; "near": near-identical ones too | Lee et al. 2022 |

Sources: C4: Raffel et al. 2020 (T5), section 2.2; Gopher: Rae et al. 2021, appendix A.1.1; Lee et al. 2022,
"Deduplicating training data makes language models better". A document is counted under the first filter of the table
that removes it. A document with a prompt is measured as prompt, space and text.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from data.duplicates.near import shingles
from data.sources.source import RawDocument

_TERMINAL = (".", "!", "?", '"', "\u201d")  # C4's terminal punctuation and its quotation mark, also the curly one
_ELLIPSES = ("...", "\u2026")
_NGRAM = 5  # words, as those of data/duplicates/near.py


@dataclasses.dataclass(frozen=True)
class FilterConfig:
    """The fields of `config.data.filters`. 0 and "none" are off. configs/base.py documents each."""

    min_characters: Annotated[int, "[0, 2**40)"]
    max_characters: Annotated[int, "[0, 2**40)"]
    min_mean_word_length: Annotated[float, "[0, 2**20)"]
    max_mean_word_length: Annotated[float, "[0, 2**20)"]
    max_symbol_fraction: Annotated[float, "[0, 2**20)"]
    min_punctuated_line_fraction: Annotated[float, "[0, 1]"]
    max_duplicate_line_fraction: Annotated[float, "[0, 1]"]
    max_duplicate_ngram_fraction: Annotated[float, "[0, 1]"]
    min_tokens: Annotated[int, "[0, 2**40)"]
    max_tokens: Annotated[int, "[0, 2**40)"]
    remove_duplicates: Literal["none", "exact", "near"]
    jaccard: Annotated[float, "[0.1, 1]"]  # the least similarity that remove_duplicates="near" removes

    def identity(self) -> dict[str, Any]:
        """Returns the fields that are on, by name: {} where a store is as without filters."""
        fields = dataclasses.asdict(self)
        if self.remove_duplicates != "near":
            del fields["jaccard"]
        return {name: value for name, value in fields.items() if value not in (0, "none")}


OFF = FilterConfig(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, "none", 0.8)  # 0.8: data.duplicates.near.JACCARD


class DocumentFilters:
    """The filters that look at one document alone."""

    def __init__(self, filters: FilterConfig):
        self._filters = filters
        bounds = [(name, getattr(filters, f"min_{name}", 0), getattr(filters, f"max_{name}", 0)) for name in _MEASURES]
        self._bounds = [(name, least, most) for name, least, most in bounds if least or most]

    def removed_by_text(self, document: RawDocument) -> str:
        """Returns the field whose filter removes a document for its prompt and text; "" if none does.

        Held-out documents of data.heldout_path pass every filter, so that runs with different filters are compared on
        the same text.
        """
        if document.is_heldout:
            return ""
        text = f"{document.prompt} {document.text}" if document.prompt else document.text
        for name, least, most in self._bounds:
            value = _MEASURES[name](text)
            if value < least:
                return f"min_{name}"
            if 0 < most < value:
                return f"max_{name}"
        return ""

    def removed_by_tokens(self, document: RawDocument, num_tokens: int) -> str:
        """Returns the field whose filter removes a document of so many tokens, without EOS; "" if none does."""
        if not document.is_heldout and num_tokens < self._filters.min_tokens:
            return "min_tokens"
        return "max_tokens" if not document.is_heldout and 0 < self._filters.max_tokens < num_tokens else ""


def mean_word_length(text: str) -> float:
    """Returns the mean number of characters of the words, which white space separates; 0 without a word."""
    words = text.split()
    return sum(map(len, words)) / len(words) if words else 0.0


def symbol_fraction(text: str) -> float:
    """Returns the number of "#" or of ellipses, whichever is greater, divided by the number of words."""
    ellipses = sum(text.count(ellipsis) for ellipsis in _ELLIPSES)
    return max(text.count("#"), ellipses) / max(len(text.split()), 1)


def punctuated_line_fraction(text: str) -> float:
    """Returns the share of the lines that end in a sentence's punctuation; blank lines do not count."""
    lines = _lines(text)
    return sum(line.endswith(_TERMINAL) for line in lines) / len(lines) if lines else 0.0


def duplicate_line_fraction(text: str) -> float:
    """Returns the share of the lines that repeat an earlier line; blank lines do not count."""
    lines = _lines(text)
    return (len(lines) - len(set(lines))) / len(lines) if lines else 0.0


def duplicate_ngram_fraction(text: str) -> float:
    """Returns the share of the characters of words that are within 5-grams of words that occur more than once.

    Every character counts once, however many such 5-grams contain it.
    """
    words = text.split()
    if len(words) <= _NGRAM:
        return 0.0
    _, inverse, counts = np.unique(shingles(" ".join(words).encode("utf-8")), return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[inverse] > 1)
    is_within = np.zeros(len(words), bool)
    for k in range(_NGRAM):
        is_within[repeated + k] = True
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return float(lengths[is_within].sum() / lengths.sum())


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


_MEASURES: dict[str, Callable[[str], float]] = {
    "characters": len,
    "mean_word_length": mean_word_length,
    "symbol_fraction": symbol_fraction,
    "punctuated_line_fraction": punctuated_line_fraction,
    "duplicate_line_fraction": duplicate_line_fraction,
    "duplicate_ngram_fraction": duplicate_ngram_fraction,
}
