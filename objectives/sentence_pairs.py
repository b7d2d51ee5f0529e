"""Pairs of texts in addition to masked tokens: the common part of BERT's NSP and ALBERT's SOP."""

import abc
import dataclasses
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from contract import rng
from contract.vocab import NEWLINE, STOP, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sentences import SentenceEnds, sentence_ends
from objectives.algebra.sequences import Sequences
from objectives.mlm import FIRST_FREE_TAG, MLM
from objectives.objective import OutputLengths

# Tags of keys: for the used length of a window, for where it is cut, for the label, and for the end of B.
USED, CUT, LABEL, END = range(FIRST_FREE_TAG, FIRST_FREE_TAG + 4)
NO_PAIR = -1  # the label of a text that has no pair


class Pair(NamedTuple):
    """Two pieces, A and B, of each of E texts: where each begins and its tokens, int64 [E]; labels int32 [E]."""

    first_begins: np.ndarray
    first_lengths: np.ndarray
    second_begins: np.ndarray
    second_lengths: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class SentencePairs(MLM):
    """[CLS] A [SEP] B [SEP], masked as in MLM. [CLS] A [SEP] has token type 0, B [SEP] has token type 1.

    A and B are pieces of windows of one document, which are cut at the ends of sentences. Subclasses define A, B and
    the label. The label must follow from what A and B say: their lengths and their first and last tokens must not
    reveal it. So both begin with a sentence wherever one of them would reveal its place by a beginning within a
    sentence, and sentences that end with a line break are not mixed with those that end with a stop, because what
    follows a stop begins with whitespace. A window without such a pair has label -1: its tokens are masked and scored,
    and the pair's loss leaves it out. All its text is A, and B is empty.

    sentence_ends: what ends a sentence: "stops", "newlines" or "stops_and_newlines" (objectives/algebra/sentences.py).
    short_seq_prob: share of the windows that are shortened to their first n tokens, n uniform in 2..all, so that the
        model also reads short texts. BERT and ALBERT: 0.1.
    pair_weight: weight of the pair's loss relative to MLM's. 0 is the ablation: inputs and masks are identical, without
        the pair's loss. BERT and ALBERT: 1.

    Deviations from the references (create_pretraining_data.py of google-research/bert and albert): a window is as long
    as a row allows, so it may begin and end inside a sentence. Where a text has a single sentence, BERT and ALBERT draw
    a random B and label it 1, which that A alone reveals. Text that a pair leaves unused is not read in this epoch.
    Every window has new masks.
    """

    sentence_ends: SentenceEnds
    short_seq_prob: Annotated[float, "[0, 1]"]
    pair_weight: Annotated[float, "[0, inf)"]

    architectures: ClassVar = frozenset({"encoder_only"})
    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    covers_window: ClassVar = False
    one_example_per_row: ClassVar = True
    num_token_types: ClassVar = 2
    has_whole_sentences: ClassVar = False  # whether A and B begin and end with sentences
    learner: ClassVar = "sentence_pairs"

    prompting = MLM.prompting
    most_scored = MLM.most_scored

    def output_lengths(self, raw):
        inputs = np.maximum(raw, 2) + 3
        return OutputLengths(inputs, np.zeros_like(raw), inputs)

    @abc.abstractmethod
    def pair(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab, **columns) -> Pair:
        """Returns the pieces of the windows that form the pairs, and the labels. Arguments as for `corrupt`."""

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        pair = self.pair(tokens, lengths, keys, vocab, **columns)
        text, _, token_types = _join(_concatenate(tokens, **columns), pair, vocab)
        return self.mask(text, keys, vocab, self._whole(pair))._replace(token_types=token_types, labels=pair.labels)

    def hidden_mask(self, tokens, lengths, keys, vocab, **columns):
        pair = self.pair(tokens, lengths, keys, vocab, **columns)
        text, places, _ = _join(_concatenate(tokens, **columns), pair, vocab)
        rows, positions = np.nonzero((places >= 0) & ~self.replaced(text, keys, vocab, self._whole(pair)))
        hidden = valid_positions(lengths, tokens.shape[1])
        if others := columns.get("others"):
            hidden = np.concatenate([hidden, valid_positions(others.lengths, others.tokens.shape[1])], axis=1)
        hidden[rows, places[rows, positions]] = False
        return hidden

    def restore(self, inputs, targets, vocab):
        return targets[(targets != vocab.cls) & (targets != vocab.sep)]

    def _whole(self, pair: Pair) -> np.ndarray:
        """bool [E]: whether a row begins and ends with a sentence, and so with whole words."""
        return self.has_whole_sentences & (pair.labels != NO_PAIR)

    def used_lengths(self, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """int64 [E]: how many tokens of each text are used: all of `lengths`, int [E], or fewer (`short_seq_prob`)."""
        is_short = rng.uniform(rng.fold_in(keys, USED), 2)[:, 1] < self.short_seq_prob
        short = rng.integers(rng.fold_in(keys, USED), np.minimum(lengths, 2), lengths)
        return np.where(is_short, short, lengths).astype(np.int64)

    def cuts_between_sentences(self, tokens: np.ndarray, lengths: np.ndarray, vocab: Vocab) -> np.ndarray:
        """bool [K, E, W + 1]: where a sentence ends before token w and another begins with it, by kind of end.

        The kinds are line breaks, then stops, without those that `sentence_ends` excludes. There are no cuts at the two
        ends of a text, where it is not known whether the text continues.
        """
        is_end = sentence_ends(tokens, lengths, vocab, self.sentence_ends) & valid_positions(
            lengths - 1, tokens.shape[1]
        )
        cuts = np.zeros((len(self.kinds_of_ends), len(tokens), tokens.shape[1] + 1), bool)
        is_newline = vocab.marked(tokens, NEWLINE)
        for kind, of_kind in zip(self.kinds_of_ends, cuts, strict=True):
            of_kind[:, 1:] = is_end & (is_newline if kind == NEWLINE else ~is_newline)
        return cuts

    @property
    def kinds_of_ends(self) -> tuple[int, ...]:
        """The marks of the tokens that end a sentence, NEWLINE before STOP."""
        return {"stops": (STOP,), "newlines": (NEWLINE,), "stops_and_newlines": (NEWLINE, STOP)}[self.sentence_ends]


def first_kind(cuts: np.ndarray, has_pair: np.ndarray) -> np.ndarray:
    """bool [E, W + 1]: the `cuts`, bool [K, E, W + 1], of the first kind k for which has_pair[k, e], bool [K, E]."""
    return cuts[has_pair.argmax(axis=0), np.arange(cuts.shape[1])]


def draw_labels(keys: np.ndarray, has_pair: np.ndarray) -> np.ndarray:
    """int32 [E]: the labels of pairs, 0 or 1 with probability 1/2 each; NO_PAIR where not has_pair[e]."""
    return np.where(has_pair, rng.uniform(rng.fold_in(keys, LABEL), 1)[:, 0] < 0.5, NO_PAIR).astype(np.int32)


def _concatenate(tokens: np.ndarray, others: Sequences | None = None, **_) -> np.ndarray:
    """int32 [E, W + V]: the tokens of each window, then the tokens of the other window."""
    return tokens if others is None else np.concatenate([tokens, others.tokens], axis=1)


def _join(tokens: np.ndarray, pair: Pair, vocab: Vocab) -> tuple[Sequences, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP]; the place of each position in `tokens`, int [E, W]; token types, int32 [E, W].

    The place of special tokens and of padding is -1.
    """
    first_sep = pair.first_lengths[:, None] + 1
    last_sep = first_sep + pair.second_lengths[:, None] + 1
    lengths = last_sep[:, 0] + 1
    position = np.arange(int(lengths.max()))
    in_first = position < first_sep
    places = position + np.where(in_first, pair.first_begins[:, None] - 1, pair.second_begins[:, None] - first_sep - 1)
    is_text = (position > 0) & (position != first_sep) & (position < last_sep)
    places = np.where(is_text, places, -1)
    joined = take(tokens, np.maximum(places, 0))
    joined[~is_text] = vocab.sep
    joined[:, 0] = vocab.cls
    return Sequences(joined, lengths), places, (position > first_sep).astype(np.int32)
