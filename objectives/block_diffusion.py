"""Block diffusion of text: blocks from left to right, masked diffusion within each block."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from objectives.algebra.noise import valid_positions
from objectives.in_place import InPlace
from objectives.objective import OutputLengths
from objectives.prompting import FillBlocks
from objectives.rows.clean_copies import block_numbers

_COUNT = 3  # tag of keys; `mask_selected` uses 1 and 2
_ROUNDING = 1e-6  # 0.3 of 10 tokens are 3


@dataclasses.dataclass(frozen=True)
class BlockDiffusion(InPlace):
    """Masked diffusion of each block of a text, given the clean blocks before it (BD3-LM: Arriola et al. 2025, arXiv
    2503.09573).

    Of the m tokens of a block k are hidden, k uniform in 1..m, independently in each block, with the loss weight m / k.
    The denominator of a text's loss is its length. So the expected loss is the sum of the blocks' any-order bounds, as
    in objectives/masked_diffusion.py, and bounds the negative log-likelihood: with one block it is masked diffusion's,
    and with blocks of one token the chain rule from left to right.

    A row has the noisy copy of a text and then a clean copy, twice the text's length (objectives/rows/clean_copies.py),
    so one pass predicts all blocks. Blocks start with the text: with data.documents="pack" or "split" with each
    document. The last block may be shorter.

    block_length: tokens of a block.
    alignment: "same": a token is predicted at its own position. "next": where the token before it is read, as by a
        causal language model; for the first token of a block this is the clean token before it. With block_length=1 no
        mask is read, and the loss is that of CLM with the same parameters.

    min_mask_share, max_mask_share: k / m is from the one to the other in training: the clipped schedules of BD3-LM,
        whose losses vary less; with other values than 0 and 1 the loss is not the bound. Where no k has such a share,
        k is the largest with at most the second, or 1. Evaluations always have 0 and 1.

    Every token of the window may be hidden, EOS too, since a causal language model predicts EOS too.

    Deviations: BD3-LM hides each token with a probability t, with the weight 1 / t, may draw again until the share is
    within its bounds, and searches for bounds in the course of a run. The exact number k has no variance of its own.
    There [MASK] has probability 0, and evaluations may leave out the first token of a text, its BOS; here it is no
    exception.
    """

    block_length: Annotated[int, "[1, 2**24]"]
    alignment: Literal["same", "next"]
    min_mask_share: Annotated[float, "[0, 1]"] = 0.0
    max_mask_share: Annotated[float, "(0, 1]"] = 1.0

    byte_metric: ClassVar[str] = "bits_per_byte"  # the bound, of the text in its order, with the EOS of documents
    has_blocks: ClassVar = True

    @property
    def shifted(self):
        return self.alignment == "next"

    @property
    def prompting(self):
        return FillBlocks(shifted=self.shifted, block_length=self.block_length)

    def check(self, field):
        super().check(field)
        if self.min_mask_share > self.max_mask_share:
            raise ConfigError(
                f"{field}.min_mask_share={self.min_mask_share} must be {field}.max_mask_share={self.max_mask_share} or "
                "less"
            )
        return []

    def heldout(self):
        return dataclasses.replace(self, min_mask_share=0.0, max_mask_share=1.0)

    def check_window(self, length, field):
        if self.block_length > length:
            raise ConfigError(
                f"{field}.block_length={self.block_length} is longer than a window of {length} tokens, half of a row: "
                f"set it to {length} or less, or data.inputs_length to {2 * self.block_length} or more"
            )

    def output_lengths(self, raw):
        return OutputLengths(2 * raw, np.zeros_like(raw), 2 * raw)

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        examples = super().corrupt(tokens, lengths, keys, vocab, **columns)
        blocks = block_numbers(tokens.shape[1], self.block_length)
        return examples._replace(blocks=np.broadcast_to(blocks, tokens.shape))

    def select(self, text, keys, vocab, **columns):
        width = text.tokens.shape[1]
        size, num_blocks = min(self.block_length, width), -(-width // self.block_length)
        counts = -(-text.lengths // size)  # blocks of each text
        inside = valid_positions(counts * size, num_blocks * size)
        of_blocks = rng.bits(rng.fold_in(keys, _COUNT), num_blocks)[valid_positions(counts, num_blocks)]
        m = np.full(len(of_blocks), size)
        m[np.cumsum(counts) - 1] -= counts * size - text.lengths  # the last block of each text
        most = np.maximum(np.floor(m * self.max_mask_share + _ROUNDING).astype(np.int64), 1)
        fewest = np.minimum(np.maximum(np.ceil(m * self.min_mask_share - _ROUNDING).astype(np.int64), 1), most)
        k = rng.integers(of_blocks, fewest, most)
        allowed = valid_positions(text.lengths, num_blocks * size)[inside].reshape(-1, size)
        chosen = rng.choose_mask(rng.fold_in(of_blocks, _COUNT), allowed, k)
        weights = np.zeros(inside.shape, np.float32)
        weights[inside] = (chosen * (m / k).astype(np.float32)[:, None]).ravel()
        weights = weights[:, :width]
        return weights > 0, weights

    def most_scored(self, raw):
        return raw

    def expected(self):
        return {"masked": 1.0, "random": 0.0, "kept": 0.0}  # the share of a block of m tokens is (m + 1) / (2 m)
