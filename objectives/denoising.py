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
    SENTINEL_PER_SPAN,
    SPANS_AFTER_SENTINELS,
    NoiseCounts,
    View,
    span_corruption,
)
from objectives.objective import InputsTargets, Objective, OutputLengths
from objectives.prompting import InfillSpans, Prompting, Rewrite


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
        if self._is_span_corruption:
            return InfillSpans()
        writes: dict[View, Literal["text", "tokens", "spans"]] = {
            ALL_TOKENS: "text", NOISE_TOKENS: "tokens", SPANS_AFTER_SENTINELS: "spans"
        }  # fmt: skip
        return Rewrite(self.inputs_view.hidden_as, writes[self.targets_view])

    @property
    def _is_span_corruption(self) -> bool:
        return self.inputs_view is SENTINEL_PER_SPAN and self.targets_view is SPANS_AFTER_SENTINELS

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
        return self.show(self.noise_mask(lengths, keys, tokens.shape[1]), tokens, lengths, keys, vocab)

    def show(
        self, noise: np.ndarray, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
    ) -> InputsTargets:
        """The inputs and targets of examples with `noise`, bool [E, W]. The other arguments are those of `corrupt`."""
        if self._is_span_corruption:
            inputs, targets = span_corruption(tokens, noise, lengths, vocab)
        else:
            keys = rng.fold_in(keys, self.view_tag)
            inputs = self.inputs_view.show(tokens, noise, lengths, vocab, keys)
            targets = self.targets_view.show(tokens, noise, lengths, vocab, keys)
        return InputsTargets(append(inputs, vocab.eos), append(targets, vocab.eos))

    def hidden_mask(self, tokens, lengths, keys, vocab):
        if not self.inputs_view.hidden_as:
            raise TypeError(f"{type(self).__name__} must define hidden_mask: its inputs do not hide exactly the noise")
        return self.noise_mask(lengths, keys, tokens.shape[1])

    def restore(self, inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray | None:
        if self.targets_view is ALL_TOKENS:
            return targets[:-1]
        return InfillSpans().complete(inputs[:-1], targets[:-1], vocab) if self._is_span_corruption else None


def views_of(objective: Objective) -> tuple[View, View, int] | None:
    """What `corrupt` does with noise: both views and view_tag. None for one with a `corrupt` or `show` of its own."""
    own = [getattr(type(objective), name, None) for name in ("corrupt", "show")]
    if isinstance(objective, Denoising) and own == [Denoising.corrupt, Denoising.show]:
        return objective.inputs_view, objective.targets_view, objective.view_tag
    return None


def corrupt_together(
    members: Sequence[tuple[Denoising, slice]], tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab
) -> InputsTargets:
    """The examples of `corrupt`, of several objectives with the same views (`views_of`), in one call.

    Args:
      members: each objective with the slice of its windows.
      tokens, lengths, keys, vocab: as for `corrupt`.
    """
    noise = np.zeros(tokens.shape, bool)
    for objective, chosen in members:
        width = int(lengths[chosen].max())
        noise[chosen, :width] = objective.noise_mask(lengths[chosen], keys[chosen], width)
    return members[0][0].show(noise, tokens, lengths, keys, vocab)
