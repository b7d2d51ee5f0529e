"""Masked diffusion of text: a random number of tokens is hidden, weighted so that the loss bounds the likelihood."""

import dataclasses
import itertools
from typing import Annotated, ClassVar, Literal

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import Capacity
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.in_place import InPlace
from objectives.prompting import FillResponse

_COUNT, _SELECT, _LENGTH = 3, 0, 4  # tags of keys; `mask_selected` uses 1 and 2


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(InPlace):
    """A random number of a text's n tokens is hidden, and weighted such that the expected loss is the any-order bound.

    This bound is the mean, over all orders of the tokens, of the chain rule in nats. It is at least the negative
    log-likelihood of the text (Ou et al. 2025, arXiv 2406.03736; Sahoo et al. 2024, arXiv 2406.07524). The denominator
    of a text's loss is n: nats per token and bits per byte are of the same tokens as a causal language model's.

    alignment: "same": a token is predicted at its own position. "next": where the token before it is read, as by a
        causal language model, whose parameters may be the start (DiffuLLaMA, Gong et al. 2025; Dream).
    noise: "count": k tokens are hidden, k uniform in 1..n, with the loss weight n / k. "bernoulli": each token is
        hidden with probability p = (1 - eps) s(t) + eps, t uniform in (0, 1], with the loss weight s'(t) / p. The
        number of hidden tokens then makes the loss of a text vary too, by sqrt((ln(1 / eps) - 1) / n) of the loss with
        s(t) = t: 21% at n = 128. A text of which nothing is hidden adds 0 to the loss and n to the denominator.
    noise_schedule: s(t); not read by noise="count". "linear": t, with which the weight is 1 / p (LLaDA, Nie et al.
        2025, arXiv 2502.09992). "cosine": sin(pi t / 2). "polynomial": t^power. These are 1 - alpha(t) of MD4 (Shi et
        al. 2024, arXiv 2406.04329), and with eps = 0 the weight is -alpha'(t) / (1 - alpha(t)), as there.
    power: the exponent of noise_schedule="polynomial"; not read by others.
    eps: the least p; not read by noise="count". Above 0 the expected loss is not the bound, which is an integral over p
        from 0 to 1, but the mean of the integrand from eps to 1. LLaDA: 1e-3. MD4: 1e-4.
    random_length_share: share of the texts that are cut to their first l tokens in training, l uniform in 1..n, so that
        the model also reads short rows. The rest of such a text is not read in this epoch. LLaDA: 0.01, of batches.
    cart_p: above 0, the loss weight of a hidden token is half the sum, over all visible tokens of its text, of
        cart_p (1 - cart_p)^(d - 1), d the distance in tokens, in place of n / k and s'(t) / p. Tokens next to visible
        ones then count most, and the loss is no bound (CART of Dream, Ye et al. 2025, arXiv 2508.15487, whose code has
        0.1). Without a visible token all weights are 0.

    Evaluations have noise="count" and cart_p=0, as in LLaDA: their loss is the bound for every noise, and varies less.

    The column `quantiles` spreads k and t evenly over the examples of a batch, as MD4 spreads t. Windows without this
    column have independent draws.

    Every token of the window may be hidden, EOS too, since a causal language model predicts EOS too.

    Deviations: MD4 bounds p away from 1 too, and adds a reconstruction term for the least p. In MD4 and MDLM (Sahoo et
    al.) [MASK] has probability 0; here, as in LLaDA, the model has to learn that it is never a target. The code of
    DiffuLLaMA divides the weighted loss by the number of hidden tokens, which is about half of n, so its loss is about
    twice this one in large batches. So does Dream's, where padding counts as visible too.
    """

    alignment: Literal["same", "next"]
    noise: Literal["count", "bernoulli"] = "count"
    noise_schedule: Literal["linear", "cosine", "polynomial"] = "linear"
    power: Annotated[float, "[1, 16]"] = 2.0
    eps: Annotated[float, "[0, 1)"] = 1e-3
    random_length_share: Annotated[float, "[0, 1]"] = 0.0
    cart_p: Annotated[float, "[0, 1]"] = 0.0

    extra_columns: ClassVar[tuple[str, ...]] = ("quantiles",)
    byte_metric: ClassVar[str] = "bits_per_byte"  # the bound, of the text in its order, with the EOS of documents

    @property
    def shifted(self):
        return self.alignment == "next"

    @property
    def prompting(self):
        return dataclasses.replace(super().prompting, bounds_likelihood=True)

    @property
    def has_denominators(self):
        return self.noise == "bernoulli" or self.cart_p > 0

    @property
    def covers_window(self):  # type: ignore[override]
        return not self.random_length_share

    def heldout(self):
        return dataclasses.replace(self, noise="count", random_length_share=0.0, cart_p=0.0)

    def read_lengths(self, lengths: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Returns how many tokens of each text are read: all of `lengths`, int [E], or fewer."""
        if not self.random_length_share:
            return lengths
        keys = rng.fold_in(keys, _LENGTH)
        is_cut = rng.uniform(keys, 2)[:, 1] < self.random_length_share  # the first number is that of the length
        return np.where(is_cut, rng.integers(keys, 1, lengths), lengths)

    def texts(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> Sequences:
        """Returns the texts that are read, of which tokens are hidden, from raw ones."""
        return Sequences(tokens, self.read_lengths(lengths, keys))

    def hidden_mask(self, tokens, lengths, keys, vocab, **columns):
        hidden = super().hidden_mask(*self.texts(tokens, lengths, keys, vocab), keys, vocab, **columns)
        return hidden[:, : tokens.shape[1]] & valid_positions(lengths, tokens.shape[1])

    def corrupt(self, tokens, lengths, keys, vocab, **columns):
        tokens, lengths = self.texts(tokens, lengths, keys, vocab)
        examples = super().corrupt(tokens, lengths, keys, vocab, **columns)
        if not self.has_denominators:  # the loss weights of a text add up to n
            return examples
        counted = _counted(lengths, tokens.shape[1], columns.get("prompt_lengths"))
        return examples._replace(denominators=counted.astype(np.float32))

    def select(self, text, keys, vocab, *, quantiles=None, prompt_lengths=None):
        counted = _counted(text.lengths, text.tokens.shape[1], prompt_lengths)
        if quantiles is None:
            quantiles = rng.uniform(rng.fold_in(keys, _COUNT), 1)[:, 0]
        keys = rng.fold_in(keys, _SELECT)
        if self.noise == "count":
            n = text.lengths if prompt_lengths is None else text.lengths - prompt_lengths
            k = 1 + np.floor(quantiles * n).astype(np.int64)
            selected, weights = rng.choose_mask(keys, counted, k), n / k
        else:
            p, weights = self.rates(1 - quantiles)
            selected = counted & (rng.uniform(keys, counted.shape[1]) < p[:, None])
        weights = weights[:, None]
        if self.cart_p:
            visible = valid_positions(text.lengths, counted.shape[1]) & ~selected
            weights = (_sums_before(visible, self.cart_p) + _sums_before(visible[:, ::-1], self.cart_p)[:, ::-1]) / 2
        return selected, selected * weights.astype(np.float32)

    def rates(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns p and the loss weight of "bernoulli" at times `t`, float64 [E] each.

        t: float64 [E]. Raises ValueError for a time outside (0, 1].
        """
        if ((t <= 0) | (t > 1)).any():
            raise ValueError(f"times of masked diffusion must be in (0, 1], not from {t.min()} to {t.max()}")
        if self.noise_schedule == "cosine":
            shares, slopes = np.sin(np.pi / 2 * t), np.pi / 2 * np.cos(np.pi / 2 * t)
        else:
            power = 1.0 if self.noise_schedule == "linear" else self.power
            shares, slopes = t**power, power * t ** (power - 1)
        p = (1 - self.eps) * shares + self.eps
        return p, slopes / p

    def expected(self):
        return {"masked": 1.0, "random": 0.0, "kept": 0.0}  # the share of a text of n tokens is (n + 1) / (2 n)


@dataclasses.dataclass(frozen=True)
class ResponseDiffusion(MaskedDiffusion):
    """Masked diffusion of responses: only the response of a pair and its EOS are hidden and counted (LLaDA's SFT).

    n is the number of these tokens, so the loss compares with the loss of objectives/sft.py on the same pairs. The
    prompt is read in both directions, and always shown. With an empty prompt the whole text is hidden and counted.

    padded_length: shorter examples, of prompt, response and EOS, have more EOS after them in training, up to this
        length: tokens of the response, hidden and counted as others. The model then writes a response of any length in
        a row of masks, and ends it with EOS. 0: an example has one EOS. Evaluations have 0, so that losses compare.

    An example is a whole document, never cut.

    Deviations: LLaDA pads to the longest example of a batch. It divides the loss of each response by the response's own
    length, with its padding, so that all responses weigh the same; here all tokens do, as in objectives/sft.py.
    """

    padded_length: Annotated[int, "[0, 2**18]"] = 0

    documents: ClassVar = ("whole",)
    extra_columns: ClassVar = ("quantiles", "prompt_lengths")
    byte_metric: ClassVar = ""

    @property
    def prompting(self):
        return FillResponse(shifted=self.shifted, bounds_likelihood=True)

    def check(self, field):
        if self.random_length_share:
            raise ConfigError(
                f"{field}.random_length_share={self.random_length_share} must be 0.0 for prompts and responses, which "
                "are never cut"
            )
        return super().check(field)

    def check_window(self, length, field):
        if self.padded_length > length:
            raise ConfigError(
                f"{field}.padded_length={self.padded_length} is longer than a row of data.inputs_length={length}: set "
                f"it to {length} or less"
            )

    def capacities(self, shape):
        return (Capacity("data.inputs_length", shape.inputs_length, True, True, 0, max(self.padded_length, 1)),)

    def heldout(self):
        return dataclasses.replace(super().heldout(), padded_length=0)

    def output_lengths(self, raw):
        return super().output_lengths(np.maximum(raw, self.padded_length))

    def texts(self, tokens, lengths, keys, vocab):
        padded = np.pad(tokens, ((0, 0), (0, max(self.padded_length - tokens.shape[1], 0))))
        padded = np.where(valid_positions(lengths, padded.shape[1]), padded, np.int32(vocab.eos))
        return Sequences(padded, np.maximum(lengths, self.padded_length))

    def restore(self, inputs, targets, vocab):
        text = np.flatnonzero(targets != vocab.eos)
        return targets[: text.max(initial=-1) + 1] if self.padded_length else targets

    def select(self, text, keys, vocab, *, prompt_lengths, quantiles=None):
        return super().select(text, keys, vocab, quantiles=quantiles, prompt_lengths=prompt_lengths)


def _counted(lengths: np.ndarray, width: int, prompt_lengths: np.ndarray | None) -> np.ndarray:
    """bool [E, width]: the tokens that may be hidden, those after the prompt."""
    counted = valid_positions(lengths, width)
    return counted if prompt_lengths is None else counted & ~valid_positions(prompt_lengths, width)


def _sums_before(visible: np.ndarray, p: float) -> np.ndarray:
    """float64 [E, W]: the sum of p (1 - p)^(d - 1) over the tokens before each at distance d that are `visible`."""
    first = np.zeros(len(visible))
    sums = itertools.accumulate(visible.T[:-1], lambda near, seen: (1 - p) * near + p * seen, initial=first)
    return np.stack(list(sums), axis=1)
