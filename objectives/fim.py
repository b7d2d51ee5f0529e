"""Fill-in-the-middle (Bavarian et al. 2022): causal language modeling of documents whose middle comes last."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import CONTINUATION, Vocab
from objectives.algebra.noise import random_column, take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.clm import CLM
from objectives.objective import InputsTargets, OutputLengths
from objectives.prompting import InfillMiddle

_CHOOSE, _FORMAT, _CUT = range(3)  # tags of keys


@dataclasses.dataclass(frozen=True)
class FIM(CLM):
    """CLM in which a share of the documents is cut in three at random places and reordered.

        PSM    <pre> prefix <suf> suffix <mid> middle EOS
        SPM    <pre> <suf> suffix <mid> prefix middle EOS        the paper's variant 2, for training jointly with PSM

    fim_rate: share of the documents that are reordered. The paper: rates up to .9 do not harm left-to-right quality.
    spm_rate: share of the reordered documents in SPM format.
    min_document_length: in tokens; shorter pieces of documents keep their order.

    "Document" means the part of a document that is in one window, in packed rows too (the paper's context-level FIM).
    Every token is scored. <pre>, <suf> and <mid> are the first three sentinels. Both cuts are uniform over the places
    between characters, the ends included, so that parts may be empty. With byte tokens a cut never divides a UTF-8
    character. With longer tokens cuts are between tokens; the paper cuts between characters and tokenizes each part.

    Deviations: the special tokens need positions, and reference code (bigcode's Megatron) cuts what overflows, starting
    with the end of the middle. Here windows are shorter instead, by three tokens for each document that could be
    reordered in one window; min_document_length bounds their number. An EOS ends every middle, even if the window ends
    before the document: without EOS a model could not show that the middle is complete.
    """

    fim_rate: Annotated[float, "[0, 1]"]
    spm_rate: Annotated[float, "[0, 1]"]
    min_document_length: Annotated[int, "[1, 2**24]"]

    documents: ClassVar = ("pack", "split")
    has_inputs: ClassVar = False
    byte_metric: ClassVar = "fim_bits_per_byte"  # of the reordered text, its three sentinels and the EOS of middles too

    @property
    def prompting(self):
        return InfillMiddle(spm=self.spm_rate == 1.0)

    def check_window(self, length, field):
        if self.fim_rate and self.min_document_length > length:
            raise ConfigError(
                f"{field}.min_document_length={self.min_document_length} is more than the {length} tokens of a window, "
                f"so no document would be reordered: lower it, or set {field}.fim_rate=0.0"
            )

    def output_lengths(self, raw):
        documents = np.asarray(raw) // self.min_document_length
        targets = raw + 3 * documents + (documents > 0)  # the document that the window's end cuts lacks its EOS
        return OutputLengths(np.zeros_like(raw), targets, targets)

    def num_sentinels(self, raw):
        return np.full_like(raw, 3)

    def corrupt(self, tokens, lengths, keys, vocab):
        plain = super().corrupt(tokens, lengths, keys, vocab)
        text_lengths = lengths - (tokens[np.arange(len(tokens)), lengths - 1] == vocab.eos)
        chosen = rng.uniform(rng.fold_in(keys, _CHOOSE), 1)[:, 0] < self.fim_rate
        chosen = np.flatnonzero(chosen & (text_lengths >= self.min_document_length))
        if not len(chosen):
            return plain
        tokens, text_lengths, keys = tokens[chosen], text_lengths[chosen], keys[chosen]
        spm = rng.uniform(rng.fold_in(keys, _FORMAT), 1)[:, 0] < self.spm_rate
        cuts = _cuts(tokens, text_lengths, rng.fold_in(keys, _CUT), vocab)
        reordered = _reorder(tokens, text_lengths, cuts, spm, vocab)
        targets, lengths = np.pad(plain.targets.tokens, ((0, 0), (0, 4))), lengths.copy()
        targets[chosen], lengths[chosen] = reordered
        return InputsTargets(plain.inputs, Sequences(targets, lengths))

    hidden_mask = CLM.hidden_mask

    def restore(self, inputs, targets, vocab):
        prefix, suffix, middle = (np.flatnonzero(targets == vocab.sentinel(k)) for k in range(3))
        if not len(prefix):
            return targets
        # In SPM format the prefix comes right before the middle, in PSM format before <suf>.
        suffix, middle = suffix[0], middle[0]
        return np.concatenate([targets[1:suffix], targets[middle + 1 : -1], targets[suffix + 1 : middle]])


def _cuts(tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
    """int64 [E, 2], ascending: two places in 0..lengths[e] to cut at, each before the token of that place."""
    width = tokens.shape[1] + 1
    allowed = valid_positions(lengths + 1, width)
    allowed[:, 1:-1] &= ~vocab.marked(tokens[:, 1:], CONTINUATION) | (np.arange(1, width - 1) == lengths[:, None])
    return np.sort(np.stack([random_column(rng.fold_in(keys, k), allowed) for k in range(2)], axis=1), axis=1)


def _reorder(tokens: np.ndarray, lengths: np.ndarray, cuts: np.ndarray, spm: np.ndarray, vocab: Vocab) -> Sequences:
    """Every example reordered, in SPM format where bool [E] `spm`, else in PSM format; 4 tokens longer, with EOS."""
    lengths, first, second = lengths[:, None], cuts[:, :1], cuts[:, 1:]
    suffix_token = np.where(spm[:, None], 1, first + 1)
    middle_token = suffix_token + 1 + lengths - second
    position = np.arange(tokens.shape[1] + 4)
    middle_offset = np.where(spm[:, None], 0, first) - (middle_token + 1)
    offset = np.where(position < middle_token, second - (suffix_token + 1), middle_offset)  # position -> raw position
    offset = np.where(position < suffix_token, -1, offset)
    source = np.clip(position + offset, 0, tokens.shape[1] - 1)
    reordered = take(tokens, source)
    reordered[:, 0] = vocab.sentinel(0)
    np.put_along_axis(reordered, suffix_token, vocab.sentinel(1), axis=1)
    np.put_along_axis(reordered, middle_token, vocab.sentinel(2), axis=1)
    np.put_along_axis(reordered, lengths + 3, vocab.eos, axis=1)
    return Sequences(reordered, lengths[:, 0] + 4)
