"""Words of training text: how many a model has seen, as suites that compare models by words seen count them."""

import dataclasses

from data.tokenizers.tokenizer import Tokenizer
from data.windows.documents import Documents

_MOST_TOKENS = 4_000_000  # of documents that are decoded and counted


@dataclasses.dataclass(frozen=True)
class WordRate:
    """Words per raw token of training text.

    A word is a maximal run of characters that are not whitespace, as `wc -w` and BabyLM's word counts have it. Raw
    tokens are those of the counter `raw_tokens`, with the EOS of each document.

    Attributes:
      words, tokens: of the counted documents.
      documents: how many documents were counted; 0 if the rate was given by the user.
      is_all: whether these are all training documents.
    """

    words: float
    tokens: int
    documents: int
    is_all: bool

    def words_in(self, raw_tokens: int) -> int:
        """Returns the words in `raw_tokens` tokens of training text; repeated text counts each time."""
        return round(raw_tokens * self.words / self.tokens)

    def describe(self) -> str:
        """Returns how words are counted, in one sentence without a full stop."""
        rate = f"{self.words / self.tokens:.4g} whitespace-separated words per token"
        if not self.documents:
            return f"{rate}, a given number"
        which = "all" if self.is_all else "a sample of"
        return f"{rate}, measured on {which} {self.documents:,} training documents ({self.tokens:,} tokens)"


def given_rate(words_per_token: float) -> WordRate:
    """Returns a rate that the user states."""
    return WordRate(words=words_per_token, tokens=1, documents=0, is_all=False)


def measure_rate(documents: Documents, tokenizer: Tokenizer) -> WordRate:
    """Returns the words per token of `documents`, the training documents of a run.

    Of a corpus of more than 4 million tokens, documents at equal distances in the corpus' order are counted, as many
    as have 4 million tokens.
    """
    offsets = documents.store.offsets
    lengths = offsets[documents.index + 1] - offsets[documents.index]
    stride = max(1, -(-int(lengths.sum()) // _MOST_TOKENS))
    chosen = range(0, len(lengths), stride)
    words = sum(len(tokenizer.decode(documents.tokens(i)).split()) for i in chosen)
    return WordRate(words, int(lengths[chosen].sum()), len(chosen), is_all=stride == 1)


def short_count(count: int) -> str:
    """Returns a count with three digits and a unit: 950, 1.23M, 12.3M, 4.57B."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= 0.9995 * size:  # 999,500 is 1M and not 1000K
            return f"{float(f'{count / size:.3g}'):g}{unit}"
    return str(count)
