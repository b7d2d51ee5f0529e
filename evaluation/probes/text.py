"""What the probes of held-out text share: their flags, and nats per byte with an interval over documents."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.windows.documents import Documents
from evaluation.probes.bootstrap import ratio_interval
from evaluation.probes.heldout import Window, heldout_windows
from evaluation.probes.probe import (
    LanguageModel,
    Probe,
    check_at_least,
    sums_by_document,
    with_interval,
)
from evaluation.probes.scorer import Example


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextProbe(Probe):
    """A probe of windows of held-out text.

    num_documents: how many documents; None: all.
    places: the most windows of a document.
    length: tokens in a window; a shorter document is one window. At most the default, a row of the run, or the two
        rows of an encoder-decoder, whichever is longer.
    text_only: whether a token's probability is among the tokens of text (scorer.text_tokens): without sentinels, mode
        tokens, EOS and other special tokens, which a hidden text does not have. A model that is trained to write short
        spans expects a sentinel or an EOS after a few tokens; otherwise the probability of these counts against it.
    """

    num_documents: int | None = 256
    places: int = 4
    length: int = 96
    text_only: bool = False

    def check(self, experiment):
        if self.num_documents is not None:
            check_at_least("num_documents", self.num_documents, 1)
        check_at_least("places", self.places, 1)
        check_at_least("length", self.length, 2)
        row, model = experiment.row_shape, experiment.model
        is_pair = model.has_encoder and model.has_decoder
        fields = ("inputs_length", "targets_length") if is_pair else ("inputs_length",)
        most = max(sum(getattr(row, field) for field in fields), TextProbe.length)
        if self.length > most:
            names = " and ".join(f"data.{field}={getattr(row, field)}" for field in fields)
            raise ConfigError(f"--length={self.length} is longer than a row of {names}: set --length={most} or less")

    def windows(self, documents: Documents, shortest: int) -> list[Window]:
        """Returns the windows, of `shortest` tokens or more.

        Raises ConfigError if no document is long enough, and if `length` is above the default and longer than every
        document.
        """
        # Without the first token, which is in no window.
        longest = int(np.diff(documents.ends(eos=False), prepend=0).max(initial=0)) - 1
        most = max(longest, TextProbe.length)
        if self.length > most:
            raise ConfigError(
                f"--length={self.length} is longer than every held-out document: set --length={most} or less"
            )
        return heldout_windows(
            documents, count=self.num_documents, places=self.places, length=self.length, shortest=shortest
        )


@dataclasses.dataclass(frozen=True)
class HiddenText:
    """What a model predicted of the hidden tokens of windows: one entry for each window.

    nats, bytes and tokens are of the hidden tokens other than unknown ones (SentencePiece's unk), whose text and bytes
    are not known.
    """

    documents: np.ndarray  # int [n]
    nats: np.ndarray  # float64 [n]
    bytes: np.ndarray  # int64 [n]
    tokens: np.ndarray  # int64 [n]
    unknown_tokens: np.ndarray  # int64 [n]
    is_exact: np.ndarray  # bool [n]: whether every hidden token is the model's likeliest one

    def counts(self) -> dict[str, int]:
        """Returns the counts as JSON fields."""
        return {
            "documents": len(np.unique(self.documents)),
            "windows": len(self.documents),
            "tokens": int(self.tokens.sum()),
            "bytes": int(self.bytes.sum()),
            "unknown_tokens": int(self.unknown_tokens.sum()),
        }

    def per_byte(self, prefix: str = "") -> dict[str, Any]:
        """Returns nats and bits per byte as JSON fields, whose names begin with `prefix`, with their intervals."""
        nats, num_bytes = (sums_by_document(self.documents, values) for values in (self.nats, self.bytes))
        nats, num_bytes = nats[num_bytes > 0], num_bytes[num_bytes > 0]
        if not len(nats):
            return {}
        value, interval = float(nats.sum() / num_bytes.sum()), ratio_interval(nats, num_bytes)
        bits = 1 / math.log(2)
        return with_interval(f"{prefix}nats_per_byte", value, interval) | with_interval(
            f"{prefix}bits_per_byte", value * bits, interval and interval.scaled(bits)
        )

    def exact_match(self) -> dict[str, Any]:
        """Returns the share of exact windows as JSON fields, with its interval over documents."""
        exact = sums_by_document(self.documents, self.is_exact.astype(np.float64))
        windows = np.bincount(self.documents).astype(np.float64)
        exact, windows = exact[windows > 0], windows[windows > 0]
        return with_interval("exact_match", float(exact.sum() / windows.sum()), ratio_interval(exact, windows))


def score_windows(
    model: LanguageModel,
    windows: Sequence[Window],
    hide_in: Callable[[Window], Sequence[Example]],
    *,
    per_window: int,
    text_only: bool,
) -> HiddenText:
    """Returns what the model predicts of the hidden tokens of `windows`.

    hide_in: the examples of a window, which together hide each of its scored tokens once.
    per_window: the number of examples of a window, for the progress bar.
    text_only: as in TextProbe.
    """
    vocab, num_bytes = model.experiment.vocab, model.experiment.tokenizer.num_bytes
    owners: list[int] = []  # the window of each example
    hidden: dict[int, np.ndarray] = {}  # the hidden tokens of the examples that are being scored

    def examples():
        for k, window in enumerate(windows):
            for example in hide_in(window):
                hidden[len(owners)] = example.hidden
                owners.append(k)
                yield example

    nats = np.zeros(len(windows))
    bytes_, tokens, unknown = np.zeros((3, len(windows)), np.int64)
    is_exact = np.ones(len(windows), bool)
    for number, scores in model.scores(examples(), per_window * len(windows), text_only=text_only):
        k, ids = owners[number], hidden.pop(number)
        is_known = ids != vocab.unk
        nats[k] += scores.nats[is_known].sum()
        bytes_[k] += num_bytes(ids)
        tokens[k] += is_known.sum()
        unknown[k] += (~is_known).sum()
        is_exact[k] &= scores.is_likeliest.all()
    documents = np.array([window.document for window in windows])
    return HiddenText(documents, nats, bytes_, tokens, unknown, is_exact)
