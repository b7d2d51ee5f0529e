"""Denoising: a noise mask, and how inputs and targets show the noise (Raffel et al. 2020, section 3.3)."""

import abc
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from contract import rng
from contract.vocab import Vocab
from objectives.algebra.sequences import append
from objectives.algebra.views import (
    ALL_TOKENS,
    NOISE_TOKENS,
    NONNOISE_TOKENS,
    SENTINEL_PER_SPAN,
    SENTINEL_PER_TOKEN,
    SPANS_AFTER_SENTINELS,
    NoiseCounts,
    View,
    fill_in_spans,
    span_corruption,
)
from objectives.objective import InputsTargets, Objective
from objectives.prompting import InfillSpans, InfillTokens, Prompting, Rewrite
from objectives.rows.lengths import OutputLengths

_HIDDEN_AS: dict[View, Literal["sentinel", "sentinels", "gap"]] = {
    SENTINEL_PER_SPAN: "sentinel",
    SENTINEL_PER_TOKEN: "sentinels",
    NONNOISE_TOKENS: "gap",
}


class Denoising(Objective):
    """An objective that is a noise mask and two views of the noise. An EOS ends inputs and targets.

    Subclasses define `noise_bounds` and `noise_mask`, and set `inputs_view` and `targets_view`, as class attributes or
    as properties. Output lengths, sentinels, `corrupt`, `hidden_mask`, `restore` and `prompting` follow from these.
    """

    view_tag: ClassVar[int] = 100  # folded into the keys that views draw from; `noise_mask` must not use it

    @property
    @abc.abstractmethod
    def inputs_view(self) -> View:
        """How the inputs show the noise."""

    @property
    @abc.abstractmethod
    def targets_view(self) -> View:
        """How the targets show the noise."""

    @abc.abstractmethod
    def noise_bounds(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fewest and the most noise tokens in texts of raw lengths, int [n]: int [n] each.

        They must hold for every draw of `noise_mask`.
        """

    def most_spans(self, raw: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The most spans that `noise` noise tokens form in texts of raw lengths, int [k, n] all.

        By default as many as fit. It must grow and then fall with `noise`, as the default does, or be constant.
        """
        return np.minimum(noise, raw - noise + 1)

    @abc.abstractmethod
    def noise_mask(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> np.ndarray:
        """bool [E, width]: the noise tokens of examples of `lengths`, int [E]. False after an example's end.

        keys: uint64 [E], the only source of randomness, one key per example.
        """

    @property
    def prompting(self) -> Prompting:
        if self._has_unique_spans:
            return InfillSpans()
        if self._has_unique_tokens:
            return InfillTokens()
        if self.targets_view is ALL_TOKENS:
            return Rewrite(hidden_as=_HIDDEN_AS.get(self.inputs_view, ""))
        raise TypeError(f"{type(self).__name__} must define prompting: its views do not determine how it is prompted")

    @property
    def _has_unique_spans(self) -> bool:
        return self.inputs_view is SENTINEL_PER_SPAN and self.targets_view is SPANS_AFTER_SENTINELS

    @property
    def _has_unique_tokens(self) -> bool:
        return self.inputs_view is SENTINEL_PER_TOKEN and self.targets_view is NOISE_TOKENS

    def _noise_counts(self, raw: np.ndarray) -> NoiseCounts:
        """The numbers of noise tokens at which lengths and sentinels are greatest.

        Lengths are linear in the number of noise tokens and of spans. So they are greatest at the bounds, or where most
        spans fit: at half of the tokens.
        """
        raw = np.asarray(raw)
        fewest, most = self.noise_bounds(raw)
        half = [np.clip(count, fewest, most) for count in ((raw + 1) // 2, (raw + 2) // 2)]
        noise = np.stack([fewest, *half, most])
        return NoiseCounts(raw, noise, self.most_spans(np.broadcast_to(raw, noise.shape), noise))

    def output_lengths(self, raw):
        counts = self._noise_counts(raw)
        inputs, targets = self.inputs_view.length(counts) + 1, self.targets_view.length(counts) + 1
        return OutputLengths(inputs.max(axis=0), targets.max(axis=0), (inputs + targets).max(axis=0))

    def num_sentinels(self, raw):
        counts = self._noise_counts(raw)
        needed = [view.num_sentinels(counts) for view in (self.inputs_view, self.targets_view)]
        return np.max(needed, axis=(0, 1))

    def corrupt(self, tokens, lengths, keys, vocab):
        return _show(self, self.noise_mask(lengths, keys, tokens.shape[1]), tokens, lengths, keys, vocab)

    def hidden_mask(self, tokens, lengths, keys, vocab):
        if not self.inputs_view.hides_noise:
            raise TypeError(f"{type(self).__name__} must define hidden_mask: its inputs do not hide exactly the noise")
        return self.noise_mask(lengths, keys, tokens.shape[1])

    def restore(self, inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray | None:
        inputs, targets = inputs[:-1].copy(), targets[:-1]
        if self.targets_view is ALL_TOKENS:
            return targets
        if self._has_unique_spans:
            return fill_in_spans(inputs, targets, vocab)
        if self._has_unique_tokens:
            inputs[inputs == vocab.sentinel(0)] = targets
            return inputs
        return None


def views_of(objective: Objective) -> tuple[View, View, int] | None:
    """What `corrupt` does with noise: both views and view_tag. None for an objective with a `corrupt` of its own."""
    if isinstance(objective, Denoising) and type(objective).corrupt is Denoising.corrupt:
        return objective.inputs_view, objective.targets_view, objective.view_tag
    return None


def corrupt_together(
    objectives: Sequence[tuple[Denoising, int]], tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
) -> InputsTargets:
    """The examples of `corrupt`, of several objectives with the same views (`views_of`), in one call.

    A mixture's denoisers have few windows each. Few calls with many windows take less time, above all in threads.

    Args:
      objectives: each objective with the number of its windows, above 0. The windows are those of the first objective,
        then those of the second, and so on.
      tokens, lengths, keys, vocab: as for `corrupt`.
    """
    noise, begin = np.zeros(tokens.shape, bool), 0
    for objective, count in objectives:
        of_objective = slice(begin, begin := begin + count)
        width = int(lengths[of_objective].max())
        noise[of_objective, :width] = objective.noise_mask(lengths[of_objective], keys[of_objective], width)
    return _show(objectives[0][0], noise, tokens, lengths, keys, vocab)


def _show(
    objective: Denoising, noise: np.ndarray, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
) -> InputsTargets:
    """The inputs and targets of examples with `noise`, bool [E, W]."""
    if (objective.inputs_view, objective.targets_view) == (SENTINEL_PER_SPAN, SPANS_AFTER_SENTINELS):
        inputs, targets = span_corruption(tokens, noise, lengths, vocab)
    else:
        keys = rng.fold_in(keys, objective.view_tag)
        inputs = objective.inputs_view.show(tokens, noise, lengths, vocab, keys)
        targets = objective.targets_view.show(tokens, noise, lengths, vocab, keys)
    return InputsTargets(append(inputs, vocab.eos), append(targets, vocab.eos))
