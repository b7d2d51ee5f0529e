"""MASS (Song et al. 2019, arXiv 1905.02450): read a text without a fragment, write the fragment at its positions."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from contract import rng
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences, append
from objectives.mlm import FIRST_FREE_TAG, check_shown_rates, mask_selected, replaced
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import FillBlank

_FRAGMENT = FIRST_FREE_TAG  # a tag of keys


@dataclasses.dataclass(frozen=True)
class MASS(Objective):
    """A fragment of consecutive tokens is masked in the inputs, token by token, and is the targets.

    mask_rate: share of the tokens in the fragment, rounded, but one token at least; the paper's is .5. The fragment
        begins at a uniformly drawn place.
    mask_token_rate, random_token_rate: the probabilities that a token of the fragment is shown as [MASK] and as a
        random ordinary token; otherwise it is kept. The paper's are .8 and .1, as BERT's.

    The decoder reads the tokens of the fragment and no others, each at the position that the token after it has in the
    text: InputsTargets.positions. The paper masks the others, and leaves them out of the computation for speed. An EOS
    ends inputs and targets, as it does in T5's objectives.

    Deviations: the decoder reads its start token before the fragment, where the authors' code reads the token before
    the fragment, which the encoder reads too. Their targets have no EOS. Their code for translation puts a fifth of the
    fragments at the beginning of the text, and a fifth at its end, and its decoder does not attend to the encoder's
    states at [MASK]; with pairs of sentences (MASS-supNMT) the encoder does not either, and a tenth of the tokens that
    the decoder reads is masked, and another tenth random. Their code for summarization has a fragment in each 64
    tokens.
    """

    mask_rate: Annotated[float, "(0, 1]"]
    mask_token_rate: Annotated[float, "[0, 1]"]
    random_token_rate: Annotated[float, "[0, 1]"]

    architectures: ClassVar = frozenset({"encoder_decoder"})
    has_positions: ClassVar = True
    prompting: ClassVar = FillBlank(hidden_as="masks")

    def check(self, field):
        check_shown_rates(field, self.mask_token_rate, self.random_token_rate)
        return super().check(field)

    def special_tokens(self, architecture):
        return ("mask",)

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, self._sizes(raw) + 1, raw + self._sizes(raw) + 2)

    def corrupt(self, tokens, lengths, keys, vocab):
        first, fragment = self._fragment(lengths, keys, tokens.shape[1])
        shown = mask_selected(keys, tokens, fragment, vocab, self.mask_token_rate, self.random_token_rate)
        sizes = self._sizes(lengths)
        place = first[:, None] + np.arange(int(sizes.max()))
        targets = append(Sequences(take(tokens, np.minimum(place, tokens.shape[1] - 1)), sizes), vocab.eos)
        positions = first[:, None] + np.arange(targets.tokens.shape[1])
        return InputsTargets(
            append(Sequences(shown, lengths), vocab.eos), targets, positions=positions.astype(np.int32)
        )

    def hidden_mask(self, tokens, lengths, keys, vocab):
        _, fragment = self._fragment(lengths, keys, tokens.shape[1])
        return replaced(keys, fragment, self.mask_token_rate, self.random_token_rate)

    def restore(self, inputs, targets, vocab):
        """As in the base class. None where the first or the last token of the fragment is not shown as [MASK]."""
        text, fragment = inputs[:-1], targets[:-1]
        masks = np.flatnonzero(text == vocab.mask)
        if not len(masks) or masks[-1] - masks[0] + 1 < len(fragment):
            return None
        return np.concatenate([text[: masks[0]], fragment, text[masks[-1] + 1 :]])

    def expected(self):
        return {"corrupted": self.mask_rate * (self.mask_token_rate + self.random_token_rate)}

    def _sizes(self, raw: np.ndarray) -> np.ndarray:
        """int64 [n]: the tokens of the fragment of texts of raw lengths, int [n]."""
        return np.maximum(np.rint(np.asarray(raw) * self.mask_rate).astype(np.int64), 1)

    def _fragment(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """The place of the fragment's first token, int64 [E], and its tokens, bool [E, width]."""
        sizes = self._sizes(lengths)
        first = rng.integers(rng.fold_in(keys, _FRAGMENT), 0, lengths - sizes)
        return first, valid_positions(first + sizes, width) & ~valid_positions(first, width)
