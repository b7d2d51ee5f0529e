"""Views of noise: T5's ways to show a noise mask in inputs and targets (t5/data/preprocessors.py), and their lengths.

The functions take E raw examples: `tokens` int32 [E, W], `noise` bool [E, W] and `lengths` int [E]. Positions from
lengths[e] on are padding, and their contents are ignored. The functions return `Sequences`.

A `View` is such a function, the length of its result, and the number of sentinels in the result.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import count_by_row, valid_positions
from objectives.algebra.sequences import Sequences, compact, random_tokens


class _Spans(NamedTuple):
    """Noise spans and their sentinels.

    Arrays [E, W + 1] have a column in front of the tokens. It is no noise, so that no span goes on in the next row, and
    it is the place before a span that begins a row.
    """

    valid: np.ndarray  # bool [E, W]
    noise: np.ndarray  # bool [E, W + 1], False on padding
    starts: np.ndarray  # int64 [n], indices into the flat array [E, W + 1]
    sentinels: np.ndarray  # int32 [n], the sentinel of each span, row after row


def _spans(noise: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> _Spans:
    num_rows, width = noise.shape
    valid = valid_positions(lengths, width)
    padded = np.zeros((num_rows, width + 1), bool)
    np.logical_and(noise, valid, out=padded[:, 1:])
    # The starts among the noise tokens: half the time of finding them in a mask of all positions.
    places = np.flatnonzero(padded)
    starts = places[np.diff(places, prepend=-2) != 1]
    counts = count_by_row(starts, padded.shape)
    if counts.max(initial=0) > vocab.num_sentinels:
        raise ValueError(f"{counts.max()} spans need more sentinels than the vocabulary's {vocab.num_sentinels}")
    before = np.cumsum(counts) - counts
    return _Spans(valid, padded, starts, vocab.sentinel(np.arange(len(starts)) - np.repeat(before, counts)))


def _with_sentinels(tokens: np.ndarray, spans: _Spans, places: np.ndarray, keep: np.ndarray) -> Sequences:
    """The tokens, int32 [E, W], where `keep`, bool [E, W + 1], and the spans' sentinels at `places`, int64 [n]."""
    shown = np.empty(keep.shape, np.int32)
    shown[:, 1:] = tokens
    shown.ravel()[places] = spans.sentinels
    keep.ravel()[places] = True
    return compact(shown, keep)


def _spans_as_sentinels(tokens: np.ndarray, spans: _Spans) -> Sequences:
    keep = np.zeros_like(spans.noise)
    np.greater(spans.valid, spans.noise[:, 1:], out=keep[:, 1:])
    return _with_sentinels(tokens, spans, spans.starts, keep)


def _spans_after_sentinels(tokens: np.ndarray, spans: _Spans) -> Sequences:
    return _with_sentinels(tokens, spans, spans.starts - 1, spans.noise.copy())  # the place before a span is no noise


def noise_span_to_unique_sentinel(tokens, noise, lengths, vocab: Vocab, keys) -> Sequences:
    """Replaces each noise span by a unique sentinel: the inputs of span corruption."""
    return _spans_as_sentinels(tokens, _spans(noise, lengths, vocab))


def noise_spans_after_sentinels(tokens, noise, lengths, vocab: Vocab, keys) -> Sequences:
    """Keeps the noise spans, each after a unique sentinel: the targets of span corruption.

    Equal to T5's `nonnoise_span_to_unique_sentinel` if an example begins with a non-noise token and ends with noise, as
    always without `random_roll`. Deviation: for other masks T5's targets lack the first span's sentinel, or end with a
    sentinel without a span.
    """
    return _spans_after_sentinels(tokens, _spans(noise, lengths, vocab))


def span_corruption(tokens, noise, lengths, vocab: Vocab) -> tuple[Sequences, Sequences]:
    """Both views of span corruption: noise_span_to_unique_sentinel and noise_spans_after_sentinels."""
    spans = _spans(noise, lengths, vocab)
    return _spans_as_sentinels(tokens, spans), _spans_after_sentinels(tokens, spans)


def drop_noise_tokens(tokens, noise, lengths, vocab: Vocab, keys) -> Sequences:
    """Keeps the non-noise tokens."""
    return compact(tokens, ~noise & valid_positions(lengths, tokens.shape[1]))


def drop_nonnoise_tokens(tokens, noise, lengths, vocab: Vocab, keys) -> Sequences:
    """Keeps the noise tokens."""
    return compact(tokens, noise & valid_positions(lengths, tokens.shape[1]))


class NoiseCounts(NamedTuple):
    """k possible numbers of noise tokens in texts of n raw lengths, and the most spans that they form."""

    raw: np.ndarray  # int [n]
    noise: np.ndarray  # int [k, n], noise tokens
    spans: np.ndarray  # int [k, n], the most spans that `noise` tokens form


class View(NamedTuple):
    """One way to show noise."""

    show: Callable[..., Sequences]  # (tokens, noise, lengths, vocab, keys)
    length: Callable[[NoiseCounts], np.ndarray]  # int [k, n], the length of the result without EOS
    num_sentinels: Callable[[NoiseCounts], np.ndarray]  # int [k, n], the number of different sentinels in the result
    # What the result has in place of noise tokens: a sentinel for each run or for each token, or nothing ("gap"). "" if
    # it contains noise tokens, or not all of the other tokens.
    hidden_as: Literal["sentinel", "sentinels", "gap", ""] = ""


def _zero(counts: NoiseCounts) -> np.ndarray:
    return np.zeros_like(counts.spans)


def _raw(counts: NoiseCounts) -> np.ndarray:
    return np.broadcast_to(counts.raw, counts.noise.shape)


SENTINEL_PER_SPAN = View(
    noise_span_to_unique_sentinel, lambda c: c.raw - c.noise + c.spans, lambda c: c.spans, hidden_as="sentinel"
)
SPANS_AFTER_SENTINELS = View(noise_spans_after_sentinels, lambda c: c.noise + c.spans, lambda c: c.spans)
NONNOISE_TOKENS = View(drop_noise_tokens, lambda c: c.raw - c.noise, _zero, hidden_as="gap")
NOISE_TOKENS = View(drop_nonnoise_tokens, lambda c: c.noise, _zero)
ALL_TOKENS = View(lambda tokens, noise, lengths, vocab, keys: Sequences(tokens, lengths), _raw, _zero)


@functools.cache
def sentinel_or_random(random_rate: float) -> View:
    """Replaces each noise token by the first sentinel or, with probability `random_rate`, by a random ordinary token.

    Deviation from T5's `noise_token_to_random_token_or_sentinel`: T5 also draws special ids. The same View for equal
    rates.
    """

    def noise_token_to_random_token_or_sentinel(tokens, noise, lengths, vocab: Vocab, keys) -> Sequences:
        shown = np.where(noise, np.int32(vocab.sentinel(0)), tokens)
        if random_rate:
            rows, columns = np.divmod(np.flatnonzero(noise), tokens.shape[1])
            is_random = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 0)[rows], columns)) < random_rate
            rows, columns = rows[is_random], columns[is_random]
            shown[rows, columns] = random_tokens(rng.bits_at(rng.fold_in(keys, 1)[rows], columns), vocab)
        return Sequences(shown, lengths)

    return View(noise_token_to_random_token_or_sentinel, _raw, lambda c: np.ones_like(c.spans), hidden_as="sentinels")


SENTINEL_PER_TOKEN = sentinel_or_random(0.0)  # MASS-style inputs
