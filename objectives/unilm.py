"""UniLM's objectives (Dong et al. 2019): masked language modeling under restricted attention."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.mlm import FIRST_FREE_TAG, MLM
from objectives.objective import OutputLengths
from objectives.prompting import FillMasks

AttentionPattern = Literal["bidirectional", "left_to_right", "right_to_left", "sequence_to_sequence"]

_CUT = FIRST_FREE_TAG


@dataclasses.dataclass(frozen=True)
class UniLM(MLM):
    """Masked tokens predicted in place, as in MLM, from the tokens that `attention` allows them to attend to.

    attention: "bidirectional": all tokens. "left_to_right": the tokens before. "right_to_left": the tokens after.
        "sequence_to_sequence": [CLS] S1 [SEP] S2 [SEP], the text cut in two at a uniformly drawn place, at least one
        token in each part. [CLS] S1 [SEP] attend to each other. Each token of S2 [SEP] attends to [CLS] S1 [SEP],
        to the tokens of S2 before it and to itself. Tokens of both parts are masked. A text of one token is S2, after
        an empty S1.

    The other fields are MLM's. UniLM masks 80% of the selected tokens as single tokens and 20% in runs of two or three:
    ngram_weights=(0.8, 0.1, 0.1). Examples of every pattern carry an attention order, so that the batches of a mixture
    of patterns have the same fields.

    Deviations: S1 and S2 are parts of a window, where UniLM packs sentences. UniLM's sentence types, which identify the
    pattern, and its next sentence prediction with the bidirectional pattern are not implemented. No [SEP] is masked;
    the authors' code for fine-tuning may mask the last one, from which the model learns where S2 ends.
    """

    attention: AttentionPattern

    architectures: ClassVar = frozenset({"encoder_only"})
    has_attention_order: ClassVar = True

    @property
    def prompting(self):
        return _FillMasksInOrder(self.mask_rate, attention=self.attention)

    def output_lengths(self, raw):
        inputs = raw + 2 + self._is_cut
        return OutputLengths(inputs, np.zeros_like(raw), inputs)

    most_scored = MLM.most_scored

    def corrupt(self, tokens, lengths, keys, vocab):
        cuts = self._cuts(lengths, keys)
        text = self._text(tokens, lengths, cuts, vocab)
        return self.mask(text, keys, vocab)._replace(attention_order=attention_order(self.attention, text, cuts))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        cuts, width = self._cuts(lengths, keys), tokens.shape[1]
        replaced = self.replaced(self._text(tokens, lengths, cuts, vocab), keys, vocab)
        of_s1, of_s2 = replaced[:, 1 : width + 1], replaced[:, -width - 1 : -1]  # the same where nothing is cut
        return np.where(valid_positions(cuts, width), of_s1, of_s2) & valid_positions(lengths, width)

    def restore(self, inputs, targets, vocab):
        if not self._is_cut:
            return targets[1:-1]
        text = targets[1:-1]
        is_sep = text == vocab.sep
        # Where [SEP] is also EOS, a text that contains EOS does not show where S1 ends.
        return text[~is_sep] if vocab.sep != vocab.eos or is_sep.sum() == 1 else None

    @property
    def _is_cut(self) -> bool:
        return self.attention == "sequence_to_sequence"

    def _cuts(self, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """int64 [E]: the number of tokens of S1."""
        shortest = np.minimum(lengths - 1, 1)
        return rng.integers(rng.fold_in(keys, _CUT), shortest, lengths - 1)

    def _text(self, tokens: np.ndarray, lengths: np.ndarray, cuts: np.ndarray, vocab: Vocab) -> Sequences:
        """The sequences with their special tokens."""
        if not self._is_cut:
            return self.with_special_tokens(tokens, lengths, vocab)
        num_examples, width = tokens.shape
        text = np.zeros((num_examples, width + 3), np.int32)
        text[:, 2:-1] = tokens  # S2; S1 is one place to the left
        np.copyto(text[:, 1:-2], tokens, where=valid_positions(cuts, width))
        text[:, 0] = vocab.cls
        for places in (cuts + 1, lengths + 2):
            text[np.arange(num_examples), places] = vocab.sep
        return Sequences(text, lengths + 3)


def attention_order(attention: AttentionPattern, text: Sequences, cuts: np.ndarray) -> np.ndarray:
    """int32 [E, W]: the order of each token. A token attends to the tokens whose order is at most its own.

    text: sequences with their special tokens. cuts: int [E], tokens of S1, used by "sequence_to_sequence" alone.
    """
    place = np.arange(text.tokens.shape[1], dtype=np.int32)
    if attention == "bidirectional":
        order = np.zeros_like(place)
    elif attention == "left_to_right":
        order = place
    elif attention == "right_to_left":
        order = np.maximum((text.lengths - 1).astype(np.int32)[:, None] - place, 0)
    else:
        order = np.maximum(place - (cuts + 1).astype(np.int32)[:, None], 0)
    return np.broadcast_to(order, text.tokens.shape).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class _FillMasksInOrder(FillMasks):
    """FillMasks under one of UniLM's attention patterns. A prompt is not cut in two."""

    attention: AttentionPattern = "bidirectional"

    def attention_order(self, inputs):
        text = Sequences(inputs, np.full(len(inputs), inputs.shape[1]))
        return attention_order(self.attention, text, text.lengths - 2)
