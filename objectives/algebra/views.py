"""How a noise mask shows: T5's seven ways (t5/data/preprocessors.py), and the targets of span corruption.

`tokens` int32 [E, W], `noise` bool [E, W] and `lengths` int [E] describe E raw examples; positions from lengths[e] on
are padding, whatever they hold. Results are `Sequences`.
"""

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, compact, from_flat, random_tokens, span_starts


def _sentinels(starts: np.ndarray, vocab: Vocab) -> np.ndarray:
    """int64 [n]: the sentinel of each start in `starts`, bool [E, W], in row order, counted along its row."""
    counts = starts.sum(axis=1)
    before = np.cumsum(counts) - counts
    return vocab.sentinel(np.arange(counts.sum()) - np.repeat(before, counts))


def noise_span_to_unique_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each noise span becomes one sentinel of its own: the inputs of span corruption."""
    valid = valid_positions(lengths, tokens.shape[1])
    starts = span_starts(noise & valid)
    shown = tokens.copy()
    shown.ravel()[np.flatnonzero(starts)] = _sentinels(starts, vocab)
    return compact(shown, (~noise | starts) & valid)


def nonnoise_span_to_unique_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each span of clean tokens becomes one sentinel of its own: T5's targets."""
    return noise_span_to_unique_sentinel(tokens, ~noise, lengths, vocab)


def noise_span_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each noise span becomes the first sentinel."""
    valid = valid_positions(lengths, tokens.shape[1])
    starts = span_starts(noise & valid)
    return compact(np.where(starts, vocab.sentinel(0), tokens), (~noise | starts) & valid)


def nonnoise_span_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each span of clean tokens becomes the first sentinel."""
    return noise_span_to_sentinel(tokens, ~noise, lengths, vocab)


def noise_token_to_sentinel(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each noise token becomes the first sentinel; the length stays (MASS-style inputs)."""
    return Sequences(np.where(noise, vocab.sentinel(0), tokens).astype(np.int32), np.asarray(lengths))


def noise_token_to_sentinel_or_random(
    tokens, noise, lengths, vocab: Vocab, keys: np.ndarray, random_rate: float
) -> Sequences:
    """Each noise token becomes the first sentinel or, with probability `random_rate`, a random ordinary token.

    T5's `noise_token_to_random_token_or_sentinel`, whose random ids may be special ones too.
    """
    shown = noise_token_to_sentinel(tokens, noise, lengths, vocab)
    if random_rate:
        rows, columns = np.divmod(np.flatnonzero(noise), tokens.shape[1])
        is_random = rng.as_uniform(rng.bits_at(rng.fold_in(keys, 0)[rows], columns)) < random_rate
        rows, columns = rows[is_random], columns[is_random]
        shown.tokens[rows, columns] = random_tokens(rng.bits_at(rng.fold_in(keys, 1)[rows], columns), vocab)
    return shown


def drop_noise_tokens(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """The clean tokens."""
    return compact(tokens, ~noise & valid_positions(lengths, tokens.shape[1]))


def drop_nonnoise_tokens(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """The noise tokens."""
    return compact(tokens, noise & valid_positions(lengths, tokens.shape[1]))


def noise_spans_after_sentinels(tokens, noise, lengths, vocab: Vocab) -> Sequences:
    """Each noise span after its sentinel: the targets that answer `noise_span_to_unique_sentinel`'s inputs.

    Equal to T5's `nonnoise_span_to_unique_sentinel` wherever an example starts clean and ends in noise, which T5's
    unrolled mask always does. Where it does not (a rolled mask), T5's targets lose the first span's sentinel or gain a
    last one that stands for nothing; these do not.
    """
    noise = noise & valid_positions(lengths, tokens.shape[1])
    starts = span_starts(noise)
    kept = np.flatnonzero(noise)
    is_start = starts.ravel()[kept]
    place = np.arange(len(kept)) + is_start.cumsum(dtype=np.int32)  # one after another, with each span's sentinel
    flat = np.empty(len(kept) + int(is_start.sum()), np.int32)
    flat[place] = tokens.ravel()[kept]
    flat[place[is_start] - 1] = _sentinels(starts, vocab)
    return from_flat(flat, noise.sum(axis=1) + starts.sum(axis=1))


def fill_in_spans(inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray:
    """The text, int32 [L], of one example whose noise spans became sentinels.

    inputs: int32 [n], with sentinels; targets: int32 [m], the spans after their sentinels; both without EOS.
    """
    spans = np.split(targets, np.flatnonzero(np.isin(targets, vocab.sentinels)))
    span_of = {int(span[0]): span[1:] for span in spans[1:]}
    parts = [span_of.get(token, [token]) for token in inputs.tolist()]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
