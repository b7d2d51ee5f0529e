"""Denoising: a noise mask, and how inputs and targets show the noise (Raffel et al. 2020, section 3.3)."""

import abc

import numpy as np

from contract.vocab import Vocab
from objectives.algebra.sequences import append
from objectives.algebra.views import (
    ALL_TOKENS,
    NOISE_TOKENS,
    SENTINEL_PER_SPAN,
    SENTINEL_PER_TOKEN,
    SPANS_AFTER_SENTINELS,
    Bounds,
    View,
    fill_in_spans,
)
from objectives.objective import InputsTargets, Objective
from objectives.prompting import InfillSpans, Prompting, Rewrite
from objectives.rows.lengths import OutputLengths


class Denoising(Objective):
    """An objective that is a noise mask and two views of the noise. An EOS ends inputs and targets.

    Subclasses define `bounds` and `noise_mask`, and set `inputs_view` and `targets_view`, as class attributes or as
    properties. Output lengths, sentinels, `corrupt`, `hidden`, `restore` and `prompting` follow from these four.
    """

    @property
    @abc.abstractmethod
    def inputs_view(self) -> View:
        """How the inputs show the noise."""

    @property
    @abc.abstractmethod
    def targets_view(self) -> View:
        """How the targets show the noise."""

    @abc.abstractmethod
    def bounds(self, raw: np.ndarray) -> Bounds:
        """Bounds on the noise of texts of raw lengths, int [n]. They must hold for every draw of `noise_mask`."""

    @abc.abstractmethod
    def noise_mask(self, lengths: np.ndarray, keys: np.ndarray, width: int) -> np.ndarray:
        """bool [E, width]: the noise tokens of examples of `lengths`, int [E]. False after an example's end.

        keys: uint64 [E], the only source of randomness, one key per example.
        """

    @property
    def prompting(self) -> Prompting:
        return InfillSpans() if self._has_unique_spans else Rewrite()

    @property
    def _has_unique_spans(self) -> bool:
        return self.inputs_view is SENTINEL_PER_SPAN and self.targets_view is SPANS_AFTER_SENTINELS

    def output_lengths(self, raw):
        bounds = self.bounds(raw)
        inputs, targets = self.inputs_view.length(bounds) + 1, self.targets_view.length(bounds) + 1
        return OutputLengths(inputs.max(axis=0), targets.max(axis=0), (inputs + targets).max(axis=0))

    def num_sentinels(self, raw):
        bounds = self.bounds(raw)
        needed = [view.num_sentinels(bounds) for view in (self.inputs_view, self.targets_view)]
        return np.max(needed, axis=(0, 1))

    def corrupt(self, tokens, lengths, keys, vocab):
        noise = self.noise_mask(lengths, keys, tokens.shape[1])
        inputs, targets = (
            append(view.show(tokens, noise, lengths, vocab, keys), vocab.eos)
            for view in (self.inputs_view, self.targets_view)
        )
        return InputsTargets(inputs, targets)

    def hidden(self, tokens, lengths, keys, vocab):
        return self.noise_mask(lengths, keys, tokens.shape[1])

    def restore(self, inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray | None:
        inputs, targets = inputs[:-1].copy(), targets[:-1]
        if self.targets_view is ALL_TOKENS:
            return targets
        if self._has_unique_spans:
            return fill_in_spans(inputs, targets, vocab)
        if self.inputs_view is SENTINEL_PER_TOKEN and self.targets_view is NOISE_TOKENS:
            inputs[inputs == vocab.sentinel(0)] = targets
            return inputs
        return None
