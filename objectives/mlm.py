"""Masked language modeling (Devlin et al. 2019; google-research/bert create_pretraining_data.py)."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, append, prepend, random_tokens
from objectives.algebra.words import CutWords, choose_ngrams, choose_token_ngrams, cut_words, word_starts
from objectives.objective import Masked, Objective, OutputLengths
from objectives.prompting import FillMasks

_SELECT, _COUNT = 0, 3  # tags of keys; `mask_selected` uses 1 and 2
FIRST_FREE_TAG = 10  # subclasses fold their keys with tags from here on


@dataclasses.dataclass(frozen=True)
class MLM(Objective):
    """[CLS] text [SEP]. A share of the tokens is selected and scored; the inputs show each masked, random or kept.

    On a decoder the rows are read in both directions, so that one model may read others causally (configs/hybrid.py).

    mask_rate: selected share of the sequence's length n, [CLS] and [SEP] counted. Special tokens are never selected.
    mask_token_rate, random_token_rate: probabilities that a selected token is masked or random; otherwise it is kept.
        BERT: 0.8, 0.1.
    mask_count: how many positions are selected. "rounded": max(1, round(rate * n)), as in BERT. "probabilistic":
        int(rate * n + U[0, 1)), as in RoBERTa, but at least one. "uniform": 1 + int(2 * rate * m * U[0, 1)) of the m
        tokens that may be selected, drawn for each example; rate is at most 0.5, with which each number from 1 to m is
        equally likely, as in MLM-U (Kitouni et al. 2024, arXiv 2406.05183), whose weights of 1 / rate the loss lacks.
    mask_unit: "token", or "word" for whole words (objectives/algebra/words.py). For words the count is an upper bound;
        where every word is longer than the bound, single tokens are selected.
    ngram_weights: relative frequencies of selecting 1, 2, 3, ... consecutive units together. BERT: (1.0,),
        single units. ALBERT: (6, 3, 2) of words, proportional to 1 / n. SpanBERT: 0.2 * 0.8^(n - 1) of words, up to
        n = 10.

    In a text without ordinary tokens nothing is selected or scored.

    Deviations: every window has new masks, may contain several documents, and random ids are ordinary tokens, as in
    RoBERTa; BERT draws masks once, from texts of one document (data.documents="split"), and random ids from the whole
    vocabulary. RoBERTa may select <s> and </s>. N-grams are drawn as `choose_ngrams` describes. SpanBERT shows all
    tokens of a span in the same way, rounds the count up, cuts the last word of the last span to fit it, and adds a
    span-boundary loss, which is not implemented.
    """

    mask_rate: Annotated[float, "(0, 1)"]
    mask_token_rate: Annotated[float, "[0, 1]"]
    random_token_rate: Annotated[float, "[0, 1]"]
    mask_count: Literal["rounded", "probabilistic", "uniform"]
    mask_unit: Literal["token", "word"]
    ngram_weights: tuple[Annotated[float, "[0, inf)"], ...]

    architectures: ClassVar = frozenset({"decoder_only", "encoder_only"})
    in_place: ClassVar = True
    eos_in_windows: ClassVar = True

    @property
    def prompting(self):
        return FillMasks(self.mask_rate)

    def special_tokens(self, architecture):
        return ("cls", "sep", "mask")

    def check(self, field):
        super().check(field)
        check_shown_rates(field, self.mask_token_rate, self.random_token_rate)
        if self.mask_count == "uniform":
            check_uniform_rate(field, self.mask_rate)
        if not 0 < sum(self.ngram_weights) < float("inf"):
            raise ConfigError(
                f"{field}.ngram_weights={self.ngram_weights} must hold weights of 1, 2, ... units, at least one "
                "positive; (1.0,) selects single units"
            )
        if not 0.05 <= self.mask_rate <= 0.4 and self.mask_count != "uniform":
            return [
                f"{field}.mask_rate={self.mask_rate} is outside 0.05 to 0.4, where masked language models are known "
                "to learn well (Wettig et al. 2023); BERT uses 0.15"
            ]
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 2, np.zeros_like(raw), raw + 2)

    def most_scored(self, raw):
        lengths = self.output_lengths(raw).inputs
        if self.mask_count == "rounded":
            counts = np.rint(lengths * self.mask_rate)
        elif self.mask_count == "uniform":
            counts = np.ceil(raw * 2 * self.mask_rate)
        else:
            counts = np.floor(lengths * self.mask_rate) + 1
        return np.minimum(np.maximum(counts.astype(np.int64), 1), raw)

    def corrupt(self, tokens, lengths, keys, vocab):
        return self.mask(self.with_special_tokens(tokens, lengths, vocab), keys, vocab)

    def hidden_mask(self, tokens, lengths, keys, vocab):
        return self.replaced(self.with_special_tokens(tokens, lengths, vocab), keys, vocab)[:, 1:-1]

    def restore(self, inputs, targets, vocab):
        return targets[1:-1]

    def expected(self):
        rates = {"masked": self.mask_token_rate, "random": self.random_token_rate}
        return {"selected": self.mask_rate, **rates, "kept": 1 - self.mask_token_rate - self.random_token_rate}

    def with_special_tokens(self, tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> Sequences:
        """[CLS] text [SEP] of raw tokens, int32 [E, W], of `lengths`, int [E]."""
        return append(prepend(Sequences(tokens, lengths), vocab.cls), vocab.sep)

    def mask(self, text: Sequences, keys: np.ndarray, vocab: Vocab, whole: np.ndarray | None = None) -> Masked:
        """Selects and masks ordinary tokens of sequences that have their special tokens. For subclasses.

        whole: bool [E], whether the first and the last word of a sequence are known to be whole; None: nowhere.
        """
        selected = self.select(text, keys, vocab, whole)
        shown = mask_selected(keys, text.tokens, selected, vocab, self.mask_token_rate, self.random_token_rate)
        return Masked(Sequences(shown, text.lengths), text.tokens, selected)

    def select(self, text: Sequences, keys: np.ndarray, vocab: Vocab, whole: np.ndarray | None = None) -> np.ndarray:
        """bool [E, W]: the positions that `mask` selects."""
        candidates = maskable(text, vocab)
        most, expected = candidates.sum(axis=1), text.lengths * self.mask_rate
        if self.mask_count == "rounded":
            counts = np.rint(expected)
        else:
            draws = rng.uniform(rng.fold_in(keys, _COUNT), 1)[:, 0]
            is_uniform = self.mask_count == "uniform"
            counts = 1 + np.floor(most * 2 * self.mask_rate * draws) if is_uniform else np.floor(expected + draws)
        counts = np.minimum(np.maximum(counts.astype(np.int64), 1), most)
        keys = rng.fold_in(keys, _SELECT)
        if self.mask_unit == "token" and len(self.ngram_weights) == 1:
            return rng.choose_mask(keys, candidates, counts)
        if self.mask_unit == "token":
            return choose_token_ngrams(keys, candidates, counts, self.ngram_weights)
        # [CLS] and [SEP] may have the id of EOS, which they are not.
        is_text = valid_positions(text.lengths - 1, text.tokens.shape[1]) & self.eos_in_windows
        is_text[:, 0] = False
        starts = word_starts(text.tokens, candidates, vocab, whole)
        cut = cut_words(text.tokens, candidates, vocab, is_text)
        if whole is not None:
            cut = CutWords(cut.first & ~whole, cut.last & ~whole)
        return choose_ngrams(keys, candidates, starts, counts, self.ngram_weights, cut)

    def replaced(self, text: Sequences, keys: np.ndarray, vocab: Vocab, whole: np.ndarray | None = None) -> np.ndarray:
        """bool [E, W]: the positions where `mask` shows [MASK] or a random token."""
        return replaced(keys, self.select(text, keys, vocab, whole), self.mask_token_rate, self.random_token_rate)


def check_shown_rates(field: str, mask_token_rate: float, random_token_rate: float) -> None:
    """Raises ConfigError if the probabilities of a mask and of a random token add up to more than 1.

    field: the config field of the objective, for messages.
    """
    if mask_token_rate + random_token_rate > 1:
        raise ConfigError(
            f"{field}.mask_token_rate={mask_token_rate} and {field}.random_token_rate={random_token_rate} add up to "
            "more than 1; the rest of the selected tokens is kept, so lower one"
        )


def check_uniform_rate(field: str, mask_rate: float) -> None:
    """Raises ConfigError if rates that are uniform from 0 to twice `mask_rate` may be above 1.

    field: the config field of the objective, for messages.
    """
    if mask_rate > 0.5:
        raise ConfigError(
            f"{field}.mask_rate={mask_rate} must be 0.5 or less with {field}.mask_count='uniform', whose rates go up "
            "to twice this number"
        )


def maskable(text: Sequences, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the tokens that may be selected: ordinary tokens, up to the end of each sequence."""
    inside = valid_positions(text.lengths, text.tokens.shape[1])
    return inside & (text.tokens >= vocab.content_start) & (text.tokens < vocab.content_end)


def mask_selected(
    keys: np.ndarray,
    tokens: np.ndarray,
    selected: np.ndarray,
    vocab: Vocab,
    mask_token_rate: float,
    random_token_rate: float,
) -> np.ndarray:
    """int32 [E, W]: `tokens` with each selected token independently masked, replaced by a random token, or kept.

    Args:
      keys: uint64 [E].
      tokens: int32 [E, W].
      selected: bool [E, W].
      vocab: supplies [MASK] and the ordinary tokens.
      mask_token_rate: probability of [MASK].
      random_token_rate: probability of a random ordinary token.
    """
    if mask_token_rate == 1.0:  # whatever is drawn
        return np.where(selected, np.int32(vocab.mask), tokens)
    rows, columns = np.divmod(np.flatnonzero(selected), tokens.shape[1])
    draws = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 1)[rows], columns))
    randoms = random_tokens(rng.bits_at(rng.fold_in(keys, 2)[rows], columns), vocab)
    not_masked = np.where(draws < mask_token_rate + random_token_rate, randoms, tokens[rows, columns])
    inputs = tokens.copy()
    inputs[rows, columns] = np.where(draws < mask_token_rate, vocab.mask, not_masked)
    return inputs


def replaced(keys: np.ndarray, selected: np.ndarray, mask_token_rate: float, random_token_rate: float) -> np.ndarray:
    """bool [E, W]: the selected tokens that `mask_selected` masks or replaces, for the same keys."""
    return selected & (rng.uniform(rng.fold_in(keys, 1), selected.shape[1]) < mask_token_rate + random_token_rate)
