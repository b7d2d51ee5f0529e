"""Reverse training (Golovneva et al. 2024, arXiv 2403.13799): a language model of texts read from either end."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from contract.vocab import BLANK, PUNCTUATION, SPACE, Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.algebra.words import word_starts
from objectives.clm import CLM
from objectives.objective import InputsTargets
from objectives.prompting import Continue

_CHOOSE, _CUT = range(2)  # tags of keys


@dataclasses.dataclass(frozen=True)
class Reverse(CLM):
    """CLM in which a share of the documents is reversed: the last unit comes first. An EOS stays at the end.

    reverse_share: share of the documents that are reversed, each by its own draw.
    unit: what keeps its own order.
        "token": nothing is larger than a token.
        "word": words (`unit_starts`), and so entities of one word, as the names of data.source="gym" are.
        "segment": runs of 1 to `max_segment_length` tokens, their lengths drawn uniformly for each document.
    max_segment_length: of "segment", in tokens. It should be at least as long as the entities of the text.

    "Document" means the part of a document that is in one window. Every token is scored.

    As in the paper, nothing marks a reversed text, and the model infers the direction from the words that it has read.
    A mixture of "clm" and of "reverse" with reverse_share=1.0 and a `mode` marks it with a mode token, as UL2 does.

    Deviations: the paper trains on both directions of every text; here each window has one of them, so that a run reads
    as many tokens as one of CLM, and both in the long run. The paper reverses words before it tokenizes. A
    reversal that keeps entities of several words, and the delimiters around such entities of Kitouni et al. 2024 (arXiv
    2406.05183), need a tagger, which sees text and not tokens; "segment" keeps parts of the text without one, as the
    paper's random segments.
    """

    reverse_share: Annotated[float, "[0, 1]"]
    unit: Literal["token", "word", "segment"]
    max_segment_length: Annotated[int, "[1, 2**24]"]

    documents: ClassVar = ("pack", "split")
    has_inputs: ClassVar = False
    byte_metric: ClassVar = "reverse_bits_per_byte"  # of the text in either order, with the EOS of documents
    prompting: ClassVar = Continue()

    hidden_mask = CLM.hidden_mask

    def corrupt(self, tokens, lengths, keys, vocab):
        plain = super().corrupt(tokens, lengths, keys, vocab)
        chosen = np.flatnonzero(rng.uniform(rng.fold_in(keys, _CHOOSE), 1)[:, 0] < self.reverse_share)
        texts, ends = tokens[chosen], lengths[chosen].astype(np.int64)
        ends -= texts[np.arange(len(chosen)), ends - 1] == vocab.eos
        if self.unit == "token":
            starts = np.ones(texts.shape, bool)
        elif self.unit == "word":
            starts = unit_starts(texts, vocab)
        else:
            starts = _segment_starts(rng.fold_in(keys[chosen], _CUT), texts.shape[1], self.max_segment_length)
        reversed_ = tokens.copy()
        reversed_[chosen] = take(texts, reversed_places(starts, ends))
        return InputsTargets(plain.inputs, Sequences(reversed_, lengths))

    def restore(self, inputs, targets, vocab):
        return None  # nothing marks the direction


def unit_starts(tokens: np.ndarray, vocab: Vocab) -> np.ndarray:
    """bool [E, W]: the first token of each word of `tokens`, int32 [E, W]; every special token is a word of its own.

    Where tokens contain the space before a word (SentencePiece, GPT-2's BPE), words are those of whole-word masking,
    with the whitespace or punctuation before them (`word_starts`). Only the first word of a text may have none; after
    the reversal it then follows the text's second word without a space.

    In other vocabularies, such as bytes, each token of whitespace or punctuation is a word of its own. It stays between
    its neighbours, so the words of a reversed text are those of the text.
    """
    ordinary = (tokens >= vocab.content_start) & (tokens < vocab.content_end)
    marks = np.frombuffer(vocab.marks, np.uint8)
    if (((marks & SPACE) > 0) & ((marks & BLANK) == 0)).any():
        return word_starts(tokens, ordinary, vocab) | ~ordinary
    alone = vocab.marked(tokens, BLANK | PUNCTUATION) | ~ordinary
    starts = alone.copy()
    starts[:, 1:] |= alone[:, :-1]
    starts[:, 0] = True
    return starts


def reversed_places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64 [E, W]: where each token of the reversed texts is in the texts. Places after a text's end stay.

    The units of a text change their order, and the tokens of a unit do not.

    Args:
      starts: bool [E, W], the first token of each unit. The first token of a text always starts one.
      lengths: int [E], tokens of each text, 0..W.
    """
    places = np.broadcast_to(np.arange(starts.shape[1]), starts.shape)
    begins = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    ends = np.full(starts.shape, starts.shape[1])
    ends[:, :-1] = np.where(starts, places, starts.shape[1])[:, 1:]
    ends = np.minimum(np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1], lengths[:, None])
    # Mirrored in its text and then in its unit, a token is in the order of its unit again.
    inside = valid_positions(lengths, starts.shape[1])
    mirrored = np.where(inside, lengths[:, None] - 1 - places, places)
    return np.where(inside, take(begins + ends, mirrored) - 1 - mirrored, places)


def _segment_starts(keys: np.ndarray, width: int, longest: int) -> np.ndarray:
    """bool [E, width]: the first token of each segment, of 1 to `longest` tokens, for keys uint64 [E]."""
    lengths = 1 + (rng.uniform(keys, width) * longest).astype(np.int64)
    starts = np.zeros((len(keys), width + 1), bool)  # the last column collects starts after the end
    np.put_along_axis(starts, np.minimum(np.cumsum(lengths, axis=1), width), True, axis=1)
    starts[:, 0] = True
    return starts[:, :width]
