"""Views of noise: T5's ways to show a noise mask in inputs and targets (t5/data/preprocessors.py), and their lengths.

The functions take E raw examples: `tokens` int32 [E, W], `noise` bool [E, W] and `lengths` int [E]. Positions from
lengths[e] on are padding, and their contents are ignored. The functions return `Sequences`.

A `View` is such a function, the length of its result, and the number of sentinels in the result.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import count_by_row, valid_positions
from objectives.algebra.sequences import Sequences, compact, random_tokens, span_starts


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


def noise_span_to_unique_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Replaces each noise span by a unique sentinel: the inputs of span corruption."""
    return _spans_as_sentinels(tokens, _spans(noise, lengths, vocab))


def noise_spans_after_sentinels(tokens, noise, lengths, vocab: Vocab) -> Sequences:
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


def nonnoise_span_to_unique_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Replaces each non-noise span by a unique sentinel: T5's targets."""
    return noise_span_to_unique_sentinel(tokens, ~noise, lengths, vocab)


def noise_span_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Replaces each noise span by the first sentinel."""
    valid = valid_positions(lengths, tokens.shape[1])
    starts = span_starts(noise & valid)
    return compact(np.where(starts, vocab.sentinel(0), tokens), (~noise | starts) & valid)


def nonnoise_span_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Replaces each non-noise span by the first sentinel."""
    return noise_span_to_sentinel(tokens, ~noise, lengths, vocab)


def noise_token_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Replaces each noise token by the first sentinel; lengths do not change (MASS-style inputs)."""
    return Sequences(np.where(noise, vocab.sentinel(0), tokens).astype(np.int32), np.asarray(lengths))


def noise_token_to_sentinel_or_random(
    tokens, noise, lengths, vocab: Vocab, keys: np.ndarray, random_rate: float
) -> Sequences:
    """Replaces each noise token by the first sentinel or, with probability `random_rate`, by a random ordinary token.

    Deviation from T5's `noise_token_to_random_token_or_sentinel`: T5 also draws special ids.
    """
    shown = noise_token_to_sentinel(tokens, noise, lengths, vocab)
    if random_rate:
        rows, columns = np.divmod(np.flatnonzero(noise), tokens.shape[1])
        is_random = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 0)[rows], columns)) < random_rate
        rows, columns = rows[is_random], columns[is_random]
        shown.tokens[rows, columns] = random_tokens(rng.bits_at(rng.fold_in(keys, 1)[rows], columns), vocab)
    return shown


def drop_noise_tokens(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Keeps the non-noise tokens."""
    return compact(tokens, ~noise & valid_positions(lengths, tokens.shape[1]))


def drop_nonnoise_tokens(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Keeps the noise tokens."""
    return compact(tokens, noise & valid_positions(lengths, tokens.shape[1]))


def fill_in_spans(inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray:
    """The raw tokens, int32 [L], of one example of span corruption.

    inputs: int32 [n], with sentinels; targets: int32 [m], the spans after their sentinels; both without EOS.
    """
    spans = np.split(targets, np.flatnonzero(np.isin(targets, vocab.sentinels)))
    span_of = {int(span[0]): span[1:] for span in spans[1:]}
    parts = [span_of.get(token, [token]) for token in inputs.tolist()]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)


class NoiseCounts(NamedTuple):
    """k possible numbers of noise tokens in texts of n raw lengths, and the most spans that they form."""

    raw: np.ndarray  # int [n]
    noise: np.ndarray  # int [k, n], noise tokens
    spans: np.ndarray  # int [k, n], the most spans that `noise` tokens form


class View(NamedTuple):
    """One way to show noise."""

    show: Callable[..., Sequences]  # (tokens, noise, lengths, vocab, keys), see `_keyless`
    length: Callable[[NoiseCounts], np.ndarray]  # int [k, n], the length of the result without EOS
    num_sentinels: Callable[[NoiseCounts], np.ndarray]  # int [k, n], the number of different sentinels in the result
    hides_noise: bool  # whether the result contains all non-noise tokens and no noise token


def _keyless(function: Callable[..., Sequences]) -> Callable[..., Sequences]:
    """`function`, which needs no keys, as a View's `show`."""
    return lambda tokens, noise, lengths, vocab, keys: function(tokens, noise, lengths, vocab)


def _zero(counts: NoiseCounts) -> np.ndarray:
    return np.zeros_like(counts.spans)


def _one(counts: NoiseCounts) -> np.ndarray:
    return np.ones_like(counts.spans)


def _raw(counts: NoiseCounts) -> np.ndarray:
    return np.broadcast_to(counts.raw, counts.noise.shape)


SENTINEL_PER_SPAN = View(
    _keyless(noise_span_to_unique_sentinel), lambda c: c.raw - c.noise + c.spans, lambda c: c.spans, hides_noise=True
)
SPANS_AFTER_SENTINELS = View(
    _keyless(noise_spans_after_sentinels), lambda c: c.noise + c.spans, lambda c: c.spans, hides_noise=False
)
SENTINEL_PER_TOKEN = View(_keyless(noise_token_to_sentinel), _raw, _one, hides_noise=True)
NONNOISE_TOKENS = View(_keyless(drop_noise_tokens), lambda c: c.raw - c.noise, _zero, hides_noise=True)
NOISE_TOKENS = View(_keyless(drop_nonnoise_tokens), lambda c: c.noise, _zero, hides_noise=False)
ALL_TOKENS = View(
    lambda tokens, noise, lengths, vocab, keys: Sequences(tokens, lengths), _raw, _zero, hides_noise=False
)


@functools.cache
def sentinel_or_random(random_rate: float) -> View:
    """`noise_token_to_sentinel_or_random` as a View, the same one for equal rates."""

    def show(tokens, noise, lengths, vocab, keys):
        return noise_token_to_sentinel_or_random(tokens, noise, lengths, vocab, keys, random_rate)

    return View(show, _raw, _one, hides_noise=True)
