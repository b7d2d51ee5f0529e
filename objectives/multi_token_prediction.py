"""Multi-token prediction (Gloeckle et al. 2024, arXiv 2404.19737; DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from objectives.clm import CLM
from objectives.objective import Objective
from objectives.sft import SFT


@dataclasses.dataclass(frozen=True)
class FutureTokenFields(Objective):
    """Predicts the next n tokens at every position, each with a separate head.

    num_future_tokens: n, 2 or more. L_i is the mean loss of the i-th token ahead, so L_1 is CLM's or SFT's.
    heads: "independent" (Gloeckle et al.): one more layer per token, all on the same trunk;
               L_1 + w (L_2 + ... + L_n), w = 1.
           "sequential" (DeepSeek-V3): one module per further token (D = n - 1), which reads the hidden states of the
               module before and the token that this module predicted; L_1 + w / D (L_2 + ... + L_n).
    loss_weight: w, the weight of the further tokens in the loss. A schedule can change it: DeepSeek-V3's lambda is 0.3
        for 10T tokens, and 0.1 for the last 4.8T.

    Deviation: both papers divide each sum by the sequence length. Here L_i is divided by the number of tokens that it
    scores, which falls slightly with i.
    """

    num_future_tokens: Annotated[int, "[2, 1024]"]
    heads: Literal["independent", "sequential"]
    loss_weight: Annotated[float, "(0, inf)"]

    architectures: ClassVar = frozenset({"decoder_only"})
    auxiliary_weight_field: ClassVar = "loss_weight"
    learner: ClassVar = "multi_token_prediction"
    device_note: ClassVar = "further heads predict the tokens after each target, up to the end of the example"

    @property
    def loss_weights(self) -> tuple[float, ...]:
        """The weights of L_1, ..., L_n in the minimized sum."""
        further = self.num_future_tokens - 1
        return (1.0, *[self.loss_weight / (further if self.heads == "sequential" else 1)] * further)


@dataclasses.dataclass(frozen=True)
class MultiTokenPrediction(FutureTokenFields, CLM):
    """CLM that predicts the next n tokens."""


@dataclasses.dataclass(frozen=True)
class ResponseMultiTokenPrediction(FutureTokenFields, SFT):
    """SFT that predicts the next n tokens, of which those of the response and its EOS are scored.

    Each head predicts every token of the response. The i-th token ahead is scored wherever it is one of the response,
    also where the prompt is not yet read to its end, as in the code of TOP's star graphs (Zuhri et al. 2025, arXiv
    2508.19228). The prompt is read causally.
    """
