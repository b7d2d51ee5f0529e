"""The loss as a function of parameters and tokens, L(N, D) = E + A / N^alpha + B / D^beta, and its optimum at a budget.

The form is that of Hoffmann et al. (2022), "Training Compute-Optimal Large Language Models", section 3.3, and so is the
number of FLOPs of a run, C = 6 N D: six for each parameter and token.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CHINCHILLA_TOKENS_PER_PARAM = 20.0  # 1.4T tokens, 70B parameters
FLOPS_PER_PARAM_AND_TOKEN = 6


class Optimum(NamedTuple):
    """The size and the tokens with the lowest loss at a budget."""

    params: float
    tokens: float
    loss: float

    @property
    def tokens_per_param(self) -> float:
        """D / N."""
        return self.tokens / self.params


@dataclasses.dataclass(frozen=True)
class Law:
    """The coefficients. Loss in nats per token, N in parameters, D in tokens.

    Attributes:
      E: the loss that no size and no number of tokens go below.
      A, alpha: of the size's part of the loss. alpha is 0 or more.
      B, beta: of the tokens' part. beta is 0 or more.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, params: ArrayLike, tokens: ArrayLike) -> np.ndarray:
        """Returns the loss, elementwise."""
        return self.E + self.A * np.power(params, -self.alpha) + self.B * np.power(tokens, -self.beta)

    def optimum(self, flops: float) -> Optimum | None:
        """Returns the size and the tokens of the lowest loss among those with 6 N D = `flops`.

        N = G (C / 6)^(beta / (alpha + beta)) with G = (alpha A / (beta B))^(1 / (alpha + beta)): Hoffmann et al.,
        equation 4. None if there is no optimum, because the loss does not depend on N or on D.
        """
        if min(self.A, self.B, self.alpha, self.beta) <= 0:
            return None
        pairs = flops / FLOPS_PER_PARAM_AND_TOKEN  # N D
        total = self.alpha + self.beta
        # In logarithms: the powers of a law with small exponents exceed the range of floats.
        log_g = (math.log(self.alpha / self.beta) + math.log(self.A) - math.log(self.B)) / total
        log_params = log_g + self.beta / total * math.log(pairs)
        log_tokens = math.log(pairs) - log_params
        if max(abs(log_params), abs(log_tokens)) > 300:
            return None
        params, tokens = math.exp(log_params), math.exp(log_tokens)
        return Optimum(params, tokens, float(self.loss(params, tokens)))


# The paper's own coefficients are rounded, and their optimum differs much from that of the coefficients in the source
# of its text, which Besiroglu et al. (2024), "Chinchilla Scaling: A replication attempt", publish. Besiroglu et al. fit
# the paper's data again, because the paper's fit had not converged.
PUBLISHED = {
    "Besiroglu et al. (2024)": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
    "Hoffmann et al. (2022), as printed": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
    "Hoffmann et al. (2022), not rounded": Law(
        E=math.exp(0.5267228), A=math.exp(6.0073404), B=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
    ),
}
