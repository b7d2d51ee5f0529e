"""UniLM's objectives (Dong et al. 2019): masked language modelling where each token sees only a part of the text."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.mlm import MLM
from objectives.rows.lengths import OutputLengths

_CUT = 10  # the first tag of keys that MLM leaves free


@dataclasses.dataclass(frozen=True)
class UniLM(MLM):
    """Masked tokens, predicted in place as in MLM, from what `attention` lets them see besides themselves.

    attention: "bidirectional" - all of the text; "left_to_right" - what comes before; "right_to_left" - what comes
        after; "sequence_to_sequence" - [CLS] S1 [SEP] S2 [SEP], the text cut in two, at least a token in each and each
        cut as likely: [CLS] S1 [SEP] see each other, S2 and its [SEP] see those and what comes before them. Tokens of
        both are masked. A text of one token is S2, after an empty S1.

    Fields otherwise as MLM's; UniLM takes 80% of what it masks as single tokens and 20% as two or three in a row,
    ngram_weights=(0.8, 0.1, 0.1). Examples of every pattern carry an attention order, so batches of a mixture of them
    are of one kind.

    Deviations: S1 and S2 are halves of a window, where UniLM packs sentences; sentence types, which there tell the
    patterns apart, are not given; nor is there next sentence prediction beside the bidirectional pattern.
    """

    attention: Literal["bidirectional", "left_to_right", "right_to_left", "sequence_to_sequence"]

    has_attention_order: ClassVar = True

    def output_lengths(self, raw):
        inputs = raw + 2 + self._is_cut
        return OutputLengths(inputs, np.zeros_like(raw), inputs)

    def corrupt(self, tokens, lengths, keys, vocab):
        cuts = self._cuts(lengths, keys)
        text, _ = self._text_and_places(tokens, lengths, cuts, vocab)
        return self.mask(text, keys, vocab)._replace(attention_order=self.order(text, cuts))

    def hidden(self, tokens, lengths, keys, vocab):
        text, places = self._text_and_places(tokens, lengths, self._cuts(lengths, keys), vocab)
        return take(self.hides(text, keys, vocab), places) & valid_positions(lengths, tokens.shape[1])

    def restore(self, inputs, targets, vocab):
        return targets[(targets != vocab.cls) & (targets != vocab.sep)]

    @property
    def _is_cut(self) -> bool:
        return self.attention == "sequence_to_sequence"

    def _cuts(self, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """int64 [E]: tokens of S1."""
        first = np.minimum(lengths - 1, 1)
        return rng.integers(rng.fold_in(keys, _CUT), first, lengths - 1)

    def _text_and_places(
        self, tokens: np.ndarray, lengths: np.ndarray, cuts: np.ndarray, vocab: Vocab
    ) -> tuple[Sequences, np.ndarray]:
        """The sequences with their special tokens, and where in them each raw token stands, int64 [E, W]."""
        width = tokens.shape[1]
        lengths, cuts = lengths[:, None], cuts[:, None]
        places = np.arange(width) + (1 + (self._is_cut & (np.arange(width) >= cuts)))
        places = np.broadcast_to(places, tokens.shape)
        out = np.zeros((len(tokens), width + 2 + self._is_cut), np.int32)
        np.put_along_axis(out, places, tokens, axis=1)
        out[:, 0] = vocab.cls
        if self._is_cut:
            np.put_along_axis(out, cuts + 1, vocab.sep, axis=1)
        np.put_along_axis(out, lengths + 1 + self._is_cut, vocab.sep, axis=1)
        return Sequences(out, lengths[:, 0] + 2 + self._is_cut), places

    def order(self, text: Sequences, cuts: np.ndarray) -> np.ndarray:
        """int32 [E, W]: a token of finished sequences sees those whose order is not above its own.

        cuts: int [E], tokens of S1, where the text is cut; all of a text that is not cut.
        """
        place = np.arange(text.tokens.shape[1])
        order = {
            "bidirectional": np.zeros_like(place),
            "left_to_right": place,
            "right_to_left": np.maximum(text.lengths[:, None] - 1 - place, 0),
            "sequence_to_sequence": np.maximum(place - (cuts[:, None] + 1), 0),
        }[self.attention]
        return np.broadcast_to(order, text.tokens.shape).astype(np.int32)
