"""Fill-in-the-middle (Bavarian et al. 2022): a causal language model of documents whose middle comes last."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import CONTINUATION, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.clm import CLM
from objectives.objective import InputsTargets
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class FIM(CLM):
    """CLM, where a share of the documents is cut in three at random, and told as prefix, suffix, middle:

        PSM    <pre> prefix <suf> suffix <mid> middle EOS
        SPM    <pre> <suf> suffix <mid> prefix middle EOS        the paper's variant 2, for training beside PSM

    fim_rate: share of the documents that are reordered. The paper: rates up to .9 cost nothing from left to right.
    spm_rate: share of those that are told as SPM.
    min_document_length: tokens; shorter pieces of documents stay as they are.

    A document is what one window holds of it, in a packed row too (the paper's context-level FIM), and every token is
    scored. <pre>, <suf>, <mid> are the first three sentinels. Both cuts are uniform over the places between characters,
    both ends included, so parts may be empty. Where tokens are bytes a cut never divides a UTF-8 character; where they
    are longer pieces cuts fall between pieces (the paper cuts characters and tokenizes the parts anew).

    Deviations: the special tokens need room, and reference code (bigcode's Megatron) cuts what overflows, the middle's
    end first. Here windows are shorter instead, by three tokens for as many documents as could be reordered in one,
    which min_document_length bounds. An EOS ends every middle, also where the window ends before the document does:
    the suffix that it must join has been read, and only EOS can say that it does.
    """

    fim_rate: float
    spm_rate: float
    min_document_length: int

    documents: ClassVar = ("pack", "split")

    def check(self, field: str) -> list[str]:
        for name in ("fim_rate", "spm_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{field}.{name}={getattr(self, name)} must lie between 0 and 1; the paper uses 0.5")
        if self.min_document_length < 1:
            raise ConfigError(f"{field}.min_document_length={self.min_document_length} must be 1 or more")
        return []

    def output_lengths(self, raw):
        documents = np.asarray(raw) // self.min_document_length
        targets = raw + 3 * documents + (documents > 0)  # one, cut by the window's end, lacks its EOS
        return OutputLengths(np.zeros_like(raw), targets, targets)

    def num_sentinels(self, raw):
        return np.full_like(raw, 3)

    def corrupt(self, tokens, lengths, keys, vocab):
        plain = super().corrupt(tokens, lengths, keys, vocab)
        text_lengths = lengths - (tokens[np.arange(len(tokens)), lengths - 1] == vocab.eos)
        chosen = rng.uniform(rng.fold_in(keys, 0), 1)[:, 0] < self.fim_rate
        chosen = np.flatnonzero(chosen & (text_lengths >= self.min_document_length))
        if not len(chosen):
            return plain
        tokens, text_lengths, keys = tokens[chosen], text_lengths[chosen], keys[chosen]
        spm = rng.uniform(rng.fold_in(keys, 1), 1)[:, 0] < self.spm_rate
        cuts = _cuts(tokens, text_lengths, rng.fold_in(keys, 2), vocab)
        told, told_lengths = _reorder(tokens, text_lengths, cuts, spm, vocab)
        targets, lengths = np.pad(plain.targets.tokens, ((0, 0), (0, 4))), lengths.copy()
        targets[chosen], lengths[chosen] = told, told_lengths
        return InputsTargets(plain.inputs, Sequences(targets, lengths))

    def restore(self, inputs, targets, vocab):
        prefix, suffix, middle = (np.flatnonzero(targets == vocab.sentinel(k)) for k in range(3))
        if not len(prefix):
            return targets
        # SPM's prefix comes with its middle, PSM's before <suf>.
        suffix, middle = suffix[0], middle[0]
        return np.concatenate([targets[1:suffix], targets[middle + 1 : -1], targets[suffix + 1 : middle]])


def _cuts(tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
    """int64 [E, 2], ascending: places 0..lengths[e] to cut at, before their token."""
    width = tokens.shape[1] + 1
    allowed = valid_positions(lengths + 1, width)
    allowed[:, 1:-1] &= ~vocab.marked(tokens[:, 1:], CONTINUATION) | (np.arange(1, width - 1) == lengths[:, None])
    counts = allowed.sum(axis=1)
    places = np.flatnonzero(allowed) % width
    nth = [rng.integers(rng.fold_in(keys, k), 0, counts - 1) for k in range(2)]
    return np.sort(places[np.stack(nth, axis=1) + (np.cumsum(counts) - counts)[:, None]], axis=1)


def _reorder(tokens: np.ndarray, lengths: np.ndarray, cuts: np.ndarray, spm: np.ndarray, vocab: Vocab) -> Sequences:
    """Every example as FIM tells it, cut at `cuts`: four tokens longer, EOS included."""
    lengths, first, second = lengths[:, None], cuts[:, :1], cuts[:, 1:]
    suffix_token = np.where(spm[:, None], 1, first + 1)
    middle_token = suffix_token + 1 + lengths - second
    place = np.arange(tokens.shape[1] + 4)
    of_middle = np.where(spm[:, None], 0, first) - (middle_token + 1)
    offset = np.where(place < middle_token, second - (suffix_token + 1), of_middle)  # of the token told there
    offset = np.where(place < suffix_token, -1, offset)
    source = np.clip(place + offset, 0, tokens.shape[1] - 1)
    out = take(tokens, source)
    out[:, 0] = vocab.sentinel(0)
    np.put_along_axis(out, suffix_token, vocab.sentinel(1), axis=1)
    np.put_along_axis(out, middle_token, vocab.sentinel(2), axis=1)
    np.put_along_axis(out, lengths + 3, vocab.eos, axis=1)
    return Sequences(out, lengths[:, 0] + 4)
