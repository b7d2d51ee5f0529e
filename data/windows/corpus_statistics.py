"""What a corpus says of itself: how much of its text its tokens cover, and the loss of a trigram model.

A model that learns more than spelling must beat the held-out loss of an interpolated trigram model. Interpolation is
Witten-Bell's (Witten & Bell 1991, method C; Chen & Goodman 1999, section 2.4), for contexts h that are followed T(h)
times by a token for the first time and c(h) times in total:

    p(w | u v) = (c(u v w) + T(u v) p(w | v)) / (c(u v) + T(u v))
    p(w | v)   = (c(v w) + T(v) p(w)) / (c(v) + T(v))
    p(w)       = (c(w) + 1) / (N + V)

A context that did not occur has the distribution of the shorter context.
"""

from typing import NamedTuple

import numpy as np

from data.store.store import TokenStore
from data.tokenizers.base import Tokenizer
from data.windows.documents import Documents, MixedDocuments, members

TRAIN_TOKENS = 1 << 22  # counted at most, so that the start of a run takes no longer for larger corpora
HELDOUT_TOKENS = 1 << 20  # scored, up to one window more
_PROBE = "A  text, with\tWORDS\nand lines\n"  # every tokenizer that loses no text restores it


def describe_coverage(store: TokenStore) -> str:
    """One line: the share of unknown tokens, and the share of the bytes of text that the tokens spell."""
    return (
        f"{store.unknown_fraction:.2%} of the corpus's tokens are unknown; "
        f"the tokens spell {store.bytes_covered():.2%} of its bytes"
    )


def coverage_warnings(store: TokenStore, tokenizer: Tokenizer) -> list[str]:
    """Warnings, one line each, about unknown tokens and about case and white space that the tokenizer loses."""
    warnings, decoded = [], tokenizer.decode(tokenizer.encode(_PROBE))
    if store.meta["num_unknown"]:
        warnings.append(
            f"{store.unknown_fraction:.2%} of the corpus's tokens are unknown (unk), and their bytes are not in "
            "bits per byte: use a tokenizer with byte fallback, which python -m data.train_tokenizer trains "
            "(docs/tokenizers.md)"
        )
    if decoded != _PROBE:
        warnings.append(
            f"the tokenizer changes texts, such as {_PROBE!r} to {decoded!r}: use one that loses no text, which "
            "python -m data.train_tokenizer trains (docs/tokenizers.md)"
        )
    return warnings


class TrigramLoss(NamedTuple):
    """The loss of a trigram model, in nats per held-out token."""

    nats: float
    train_tokens: int


def trigram_loss(train: Documents, places: np.ndarray, eos: int) -> TrigramLoss:
    """Returns the mean loss, on held-out tokens of one corpus, of a trigram model of its training documents.

    The two tokens before a token are those of its document, also where its window begins between them.

    Args:
      train: the training documents, as for `trigram_model`.
      places: int64 [n], the held-out tokens' places in the store: Heldout.places(HELDOUT_TOKENS), the tokens that an
        evaluation reads, so that documents have the weights that they have in its loss.
      eos: the token after, and here before, each document.
    """
    model = trigram_model(train, eos)
    probabilities = model.probability(*triples_at(places, train.store, eos))
    return TrigramLoss(float(-np.log(probabilities).mean()), counted_tokens(train))


class TrigramModel:
    """A trigram model with Witten-Bell interpolation over the ids 0, ..., `size` - 1; see the module's docstring.

    Attributes:
      no_token: in place of an id of a context, says that no token is known there. Such a context did not occur.
    """

    def __init__(self, triples: np.ndarray, size: int, is_possible: np.ndarray | None = None):
        """Counts `triples`, int64 [3, n]: each token, third, after the two tokens before it.

        is_possible: bool [size], the ids that have a probability, which is then among them alone; None: all.
        """
        if size >= 1 << 21:
            raise ValueError(f"three of {size} ids do not fit an int64")
        self.no_token, self._base = size, size + 1
        is_possible = np.ones(size, bool) if is_possible is None else is_possible
        u, v, w = triples[:, is_possible[triples[2]]]
        self._unigram = (np.bincount(w, minlength=size) + 1) * is_possible / (len(w) + is_possible.sum())
        self._bigrams = _Counts(v * self._base + w, self._base)
        self._trigrams = _Counts((u * self._base + v) * self._base + w, self._base)

    def unigram_probability(self, w: np.ndarray) -> np.ndarray:
        """float64 [n]: p(w) of ids, int64 [n]."""
        return self._unigram[w]

    def probability(self, u: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
        """float64 [n]: p(w | u v) of ids, int64 [n] each, above 0 for every id that is possible."""
        shorter = self._bigrams.interpolate(v * self._base + w, self._unigram[w])
        return self._trigrams.interpolate((u * self._base + v) * self._base + w, shorter)


def trigram_model(
    documents: Documents | MixedDocuments, eos: int, is_possible: np.ndarray | None = None
) -> TrigramModel:
    """Returns the trigram model of training documents.

    Counts up to TRAIN_TOKENS tokens of each corpus: documents in the order of their digests, which is random and does
    not depend on the seed, the last one cut.

    is_possible: as for TrigramModel.
    """
    triples = np.concatenate([_triples(part, TRAIN_TOKENS, eos) for part in documents.by_corpus], axis=1)
    return TrigramModel(triples, len(documents.by_corpus[0].store.unigram_counts), is_possible)


def counted_tokens(documents: Documents | MixedDocuments) -> int:
    """Returns the number of training tokens that `trigram_model` counts."""
    return sum(min(part.num_tokens(eos=True), TRAIN_TOKENS) for part in documents.by_corpus)


class _Counts:
    """How often each n-gram, an int64 with digits in base `base`, and its context, the ids before the last, occur."""

    def __init__(self, ngrams: np.ndarray, base: int):
        self._base = base
        self._ngrams, self._counts = np.unique(ngrams, return_counts=True)
        self._contexts, starts, self._types = np.unique(self._ngrams // base, return_index=True, return_counts=True)
        self._totals = np.add.reduceat(self._counts, starts)

    def interpolate(self, ngrams: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """float64 [n]: the probabilities of `ngrams`, int64 [n], given those of the shorter n-grams, float64 [n]."""
        contexts = ngrams // self._base
        total, types = (_look_up(self._contexts, values, contexts) for values in (self._totals, self._types))
        count = _look_up(self._ngrams, self._counts, ngrams)
        return np.where(total > 0, (count + types * shorter) / np.maximum(total + types, 1), shorter)


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value of each query, int64 [n], where `keys`, ascending, contain the query; 0 elsewhere."""
    place = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[place] == queries, values[place], 0)


def _triples(documents: Documents, limit: int, eos: int) -> np.ndarray:
    """int64 [3, n]: each token, EOS of documents included, third, after the two before it; EOS before a document."""
    store = documents.store
    order = documents.index[np.argsort(store.digests[documents.index], kind="stable")]
    ends = np.cumsum(store.offsets[order + 1] - store.offsets[order])
    ends = np.minimum(ends[: np.searchsorted(ends, limit) + 1], limit)  # of documents with `limit` tokens together
    document, nth = members(np.diff(ends, prepend=0))
    tokens = store.tokens[store.offsets[order[document]] + nth]
    padded = np.concatenate([[eos, eos], tokens]).astype(np.int64)
    triples = np.stack([padded[:-2], padded[1:-1], padded[2:]])
    triples[0, ends[:-1]] = eos  # not the last token of the document before
    return triples


def triples_at(places: np.ndarray, store: TokenStore, eos: int) -> np.ndarray:
    """int64 [3, n]: each token at `places` in the store, int64 [n], third, after the two before it in its document.

    EOS in place of the tokens before a document.
    """
    begins = store.offsets[np.searchsorted(store.offsets, places, side="right") - 1]
    before = (np.where(places - k >= begins, store.tokens[places - k], eos) for k in (2, 1))
    return np.stack([*before, store.tokens[places]]).astype(np.int64)
