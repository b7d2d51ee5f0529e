"""A second head that predicts more of the future than the next token. Inference does not use the head."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from objectives.clm import CLM
from objectives.objective import Objective
from objectives.sft import SFT


@dataclasses.dataclass(frozen=True)
class SummaryFields(Objective):
    """Adds `loss_weight` times the loss of a linear head on the same states, at the scored positions.

    summary: what the head predicts.
        "order": which tokens come next, in the order of their first occurrences (TOP, Zuhri et al. 2025, arXiv
            2508.19228): a softmax over the vocabulary.
        "bag": which tokens are 2 to `horizon` tokens ahead, in any order (FSP, Mahajan et al. 2025, arXiv
            2510.14751): a sigmoid for each token of the vocabulary.
    horizon: of "bag", in tokens. The papers: 12 and 100. "order" looks to the end of the segment.
    loss_weight: relative to the mean loss of the next token. The papers: 1.

    Both stop at the end of the row, and at the end of the document where data.documents is "pack" or "split".

    Deviations: TOP's code reads as many tokens after the row as its window has, and goes on across documents. It keeps
    the window's length minus the distance in float16, which with 4,096 makes the next two tokens equal. The
    terms of a bag have equal weights, where FSP's paper reweights them, and the loss is the mean over the vocabulary.
    """

    summary: Literal["order", "bag"]
    horizon: Annotated[int, "[2, 2**16]"]
    loss_weight: Annotated[float, "(0, inf)"]

    architectures: ClassVar = frozenset({"decoder_only"})
    auxiliary_weight_field: ClassVar = "loss_weight"
    learner: ClassVar = "future_summary"
    device_note: ClassVar = "a further head predicts a summary of the tokens ahead, up to the end of the example"


@dataclasses.dataclass(frozen=True)
class FutureSummary(SummaryFields, CLM):
    """CLM with a summary of the tokens ahead."""


@dataclasses.dataclass(frozen=True)
class ResponseFutureSummary(SummaryFields, SFT):
    """SFT with a summary of the rest of the response and its EOS, as in the star graphs of TOP's paper.

    The first summary is at the last token of the prompt. The prompt is read causally.
    """
