"""Masked language modelling (Devlin et al. 2019; google-research/bert create_pretraining_data.py)."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import Vocab
from objectives.algebra import sequences
from objectives.algebra.masking import not_shown, ordinary, show
from objectives.algebra.sequences import Sequences
from objectives.algebra.words import choose_ngrams, word_starts
from objectives.objective import Masked, Objective, check_density
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class MLM(Objective):
    """[CLS] text [SEP]; a fixed share of the positions is selected, shown masked, random or kept, and all are scored.

    mask_rate: selected share of the sequence's length n, [CLS] and [SEP] counted; special tokens are never selected.
    mask_token_rate, random_token_rate: of the selected, each token by itself; the rest is kept. BERT: 0.8, 0.1, 0.1.
    mask_count: how many are selected: "rounded" - max(1, round(rate * n)), BERT's; "probabilistic" -
        int(rate * n + U[0, 1)), RoBERTa's, rate * n on average; here too one at least.
    mask_unit: "token", or "word": words whole (objectives/algebra/words.py), as many as fit the count, then
        the most.
        Where every word is longer than that, single tokens are selected instead.
    ngram_weights: how often 1, 2, 3, ... units in a row are selected together. (1.0,): each by itself, as in BERT;
        (6, 3, 2), proportional to 1 / n, of words: ALBERT; 0.2 * 0.8^(n - 1) up to 10, of words: SpanBERT.

    A text without an ordinary token, nothing but the ends of documents, has nothing selected and scores nothing.

    Deviations: masks are drawn anew for every window and random ids are ordinary tokens, as RoBERTa's, where BERT draws
    once and from the whole vocabulary; RoBERTa may select <s> and </s>; n-grams are drawn as choose_ngrams says;
    SpanBERT shows all tokens of a span in one way, cuts the last word of the last span to fit the count, and adds a
    second loss, predicting each token from its span's borders, which is not here.
    """

    mask_rate: float
    mask_token_rate: float
    random_token_rate: float
    mask_count: Literal["rounded", "probabilistic"]
    mask_unit: Literal["token", "word"]
    ngram_weights: tuple[float, ...]

    architectures: ClassVar = frozenset({"encoder_only"})
    documents: ClassVar = ("join", "split")
    eos_in_windows: ClassVar = True

    def check(self, field: str) -> list[str]:
        check_density(self.mask_rate, f"{field}.mask_rate")
        shown = {name: getattr(self, name) for name in ("mask_token_rate", "random_token_rate")}
        for name, rate in shown.items():
            if not 0 <= rate <= 1:
                raise ConfigError(f"{field}.{name}={rate} must lie between 0 and 1")
        if sum(shown.values()) > 1:
            raise ConfigError(
                f"{field}.mask_token_rate={self.mask_token_rate} and random_token_rate={self.random_token_rate} "
                "add up to more than 1; the rest of the selected tokens is kept, so lower one of them"
            )
        if not self.ngram_weights or min(self.ngram_weights) < 0 or not 0 < sum(self.ngram_weights) < float("inf"):
            raise ConfigError(
                f"{field}.ngram_weights={self.ngram_weights} must hold weights of 1, 2, ... units, none below 0 and "
                "one above; (1.0,) selects each by itself"
            )
        if not 0.05 <= self.mask_rate <= 0.4:
            return [
                f"{field}.mask_rate={self.mask_rate} is outside 0.05 to 0.4, where masked language models are known "
                "to learn well (Wettig et al. 2023); BERT uses 0.15"
            ]
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 2, np.zeros_like(raw), raw + 2)

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        shown = {"masked": self.mask_token_rate, "random": self.random_token_rate}
        return {"selected": self.mask_rate, **shown, "kept": 1 - self.mask_token_rate - self.random_token_rate}

    def corrupt(self, tokens, lengths, keys, vocab):
        return self.mask(self._text(tokens, lengths, vocab), keys, vocab)

    def mask(self, text: Sequences, keys: np.ndarray, vocab: Vocab) -> Masked:
        """Selects of finished sequences, special tokens and all, and shows. For objectives that build their own."""
        selected = self.select(text, keys, vocab)
        shown = show(keys, text.tokens, selected, vocab, self.mask_token_rate, self.random_token_rate)
        return Masked(Sequences(shown, text.lengths), text.tokens, selected)

    def select(self, text: Sequences, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
        """bool [E, W]: the positions of finished sequences that `mask` selects."""
        candidates = ordinary(text, vocab)
        expected = text.lengths * self.mask_rate
        if self.mask_count == "rounded":
            counts = np.rint(expected)
        else:
            counts = np.floor(expected + rng.uniform(rng.fold_in(keys, 3), 1)[:, 0])
        counts = np.minimum(np.maximum(counts.astype(np.int64), 1), candidates.sum(axis=1))
        if self.mask_unit == "token" and len(self.ngram_weights) == 1:
            return rng.choose_mask(rng.fold_in(keys, 0), candidates, counts)
        starts = candidates if self.mask_unit == "token" else word_starts(text.tokens, candidates, vocab)
        return choose_ngrams(rng.fold_in(keys, 0), candidates, starts, counts, self.ngram_weights)

    def hides(self, text: Sequences, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
        """bool [E, W]: the positions of finished sequences where `mask` shows another token."""
        return not_shown(keys, self.select(text, keys, vocab), self.mask_token_rate, self.random_token_rate)

    def hidden(self, tokens, lengths, keys, vocab):
        return self.hides(self._text(tokens, lengths, vocab), keys, vocab)[:, 1:-1]

    def restore(self, inputs, targets, vocab):
        return targets[1:-1]

    def _text(self, tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> Sequences:
        return sequences.append(sequences.prepend(Sequences(tokens, lengths), vocab.cls), vocab.sep)
