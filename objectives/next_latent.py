"""States that also predict the next states. Inference does not use the further parameters."""

import dataclasses
from typing import Annotated, ClassVar

from objectives.clm import CLM
from objectives.objective import Objective
from objectives.sft import SFT


@dataclasses.dataclass(frozen=True)
class NextLatentFields(Objective):
    """Adds the losses of an MLP that predicts the next state from a state and the next token (NextLat).

    Teoh et al. 2025 (arXiv 2511.05963): the state after the final norm at position t and the embedding of token t + 1
    give the state at t + 1, which with token t + 2 gives that at t + 2, and so on. Both losses are means over the
    steps.

    horizon: steps. The paper: 1, and up to 8.
    latent_weight: of the smooth L1 loss, whose target is the model's own state, as a constant. The paper: 1 to 3.
    kl_weight: of the Kullback-Leibler divergence of the next token's probabilities at the predicted state from those at
        the model's own, both as constants but for the predicted state. The paper: 0.1 to 1.

    With both weights 0 the objective is CLM or SFT. States are predicted up to the end of a segment, which is the end
    of the document unless data.documents is "join".
    """

    horizon: Annotated[int, "[1, 64]"]
    latent_weight: Annotated[float, "[0, inf)"]
    kl_weight: Annotated[float, "[0, inf)"]

    architectures: ClassVar = frozenset({"decoder_only"})
    learner: ClassVar = "next_latent"
    device_note: ClassVar = "an MLP predicts the next states from the states and the tokens ahead, within the example"


@dataclasses.dataclass(frozen=True)
class NextLatent(NextLatentFields, CLM):
    """CLM whose states predict the next states."""


@dataclasses.dataclass(frozen=True)
class ResponseNextLatent(NextLatentFields, SFT):
    """SFT whose states predict the next states.

    The smooth L1 loss is over the states of the prompt too, as that of NextLatent is over all positions. The divergence
    is over the states that predict a token of the response or its EOS. The prompt is read causally.
    """
