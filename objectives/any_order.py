"""Any-order language modeling: each text is read and predicted in an order of its own (sigma-GPT, XLNet)."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from contract import rng
from contract.windows import DocumentHandling
from objectives.algebra.noise import take, valid_positions
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import ContinueAnyOrder

_CHOOSE, _ORDER = range(2)  # tags of keys


@dataclasses.dataclass(frozen=True)
class AnyOrder(Objective):
    """CLM in which a share of the texts is read in a random order; the model knows the place of the token that is next.

    With one order for each text, drawn uniformly, the expected loss is the mean, over all orders of the tokens, of the
    chain rule in nats, as that of objectives/masked_diffusion.py, and bounds the negative log-likelihood. Here one pass
    predicts each of the n tokens once (sigma-GPT: Pannatier et al. 2024, arXiv 2404.09562).

    shuffled_share: share of the texts in a random order, each by its own draw; the others are read from left to right.
        sigma-GPT's curriculum is a schedule of this field, from 0 to 1.
    predicted_share: share of a text's tokens, the last ones in its order, that are predicted; at least one. The others
        are the inputs. XLNet's 1 / K is 1/6 (Yang et al. 2019, arXiv 1906.08237, section 2.3).

    The batch has the place of each target (`decoder_target_positions`, contract/batch.py), and the model must have
    model.target_positions=True. Texts that are read from left to right have the batches of CLM, with this field.

    Evaluations read every text in a random order, unless shuffled_share is 0 at the end: `any_order_bits_per_byte` is
    the bound, estimated from one order of each text. Evaluated under configs/clm.py, a run's `bits_per_byte` is from
    left to right.

    Deviations: sigma-GPT draws whether a whole batch is shuffled, here each text has a draw. Its code reads the first
    token of the order and does not predict it; here it is predicted from the start token. Both places are rows of one
    table there, in half of the width each.

    XLNet has two streams of attention: one reads the tokens, and the queries of the other know the place of the target
    alone. Here each position reads the token before the target in the order and knows both places, as in sigma-GPT, so
    one stream of n positions does both. In XLNet's code the tokens that are not predicted see each other in both
    directions, here in their order alone (data.bidirectional_inputs=False); and the predicted ones are runs of one to
    five words, here single tokens. Its memory of the segment before is not here.
    """

    shuffled_share: Annotated[float, "[0, 1]"]
    predicted_share: Annotated[float, "(0, 1]"] = 1.0

    architectures: ClassVar = frozenset({"decoder_only"})
    documents: ClassVar[tuple[DocumentHandling, ...]] = ("join", "pack", "split")
    eos_in_windows: ClassVar = True
    has_places: ClassVar = True
    prompting: ClassVar = ContinueAnyOrder()

    @property
    def has_inputs(self):  # type: ignore[override]
        return self.predicted_share < 1

    @property
    def byte_metric(self):  # type: ignore[override]
        """Of all tokens with the EOS of documents, and of the order in which `heldout` reads them."""
        if self.predicted_share < 1:
            return ""
        return "any_order_bits_per_byte" if self.shuffled_share else "bits_per_byte"

    def heldout(self):
        return dataclasses.replace(self, shuffled_share=float(self.shuffled_share > 0))

    def most_scored(self, raw):
        return np.maximum(np.rint(raw * self.predicted_share).astype(np.int64), 1)

    def output_lengths(self, raw):
        targets = self.most_scored(raw)
        return OutputLengths(raw - targets, targets, raw)

    def corrupt(self, tokens, lengths, keys, vocab):
        places = self.places(lengths, keys, tokens.shape[1])
        in_order, counts = take(tokens, places), self.output_lengths(lengths)
        first = np.arange(int(counts.targets.max(initial=0))) + counts.inputs[:, None]
        targets = take(in_order, np.minimum(first, tokens.shape[1] - 1))
        inputs = in_order[:, : int(counts.inputs.max(initial=0))]
        return InputsTargets(
            Sequences(inputs, counts.inputs), Sequences(targets, counts.targets), places=places.astype(np.int32)
        )

    def places(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> np.ndarray:
        """int64 [E, width]: the places of each text's tokens in the order in which they are read; then 0, 1, ...

        lengths: int [E], 1..width. keys: uint64 [E].
        """
        places = np.broadcast_to(np.arange(width), (len(lengths), width)).copy()
        chosen = np.flatnonzero(rng.uniform(rng.fold_in(keys, _CHOOSE), 1)[:, 0] < self.shuffled_share)
        inside = valid_positions(lengths[chosen], width)
        drawn = rng.draw(rng.fold_in(keys[chosen], _ORDER), inside, lengths[chosen])  # `width` after a text's end
        longest = drawn.shape[1]
        places[chosen, :longest] = np.where(drawn < width, drawn, np.arange(longest))
        return places

    def hidden_mask(self, tokens, lengths, keys, vocab):
        width = tokens.shape[1]
        first = self.output_lengths(lengths).inputs[:, None]
        hidden = np.zeros(tokens.shape, bool)
        is_target = (np.arange(width) >= first) & valid_positions(lengths, width)
        np.put_along_axis(hidden, self.places(lengths, keys, width), is_target, axis=1)
        return hidden

    def restore(self, inputs, targets, vocab):
        return None  # the places are not among the tokens

    def expected(self):
        return {"corrupted": self.predicted_share}
