"""--probe=minimal_pairs: which of two sentences is likelier (Warstadt et al. 2020, BLiMP).

Each line of a file of pairs is an object with two sentences, and optionally the name of the pair's group. Other keys
and blank lines are ignored:

    {"good": "The cats sleep.", "bad": "The cats sleeps.", "group": "agreement"}
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from contract.errors import ConfigError
from data.sources.records import InvalidRecord, numbered_lines, read_object, string_field
from data.tokenizers.tokenizer import Tokenizer
from evaluation.likelihood import Pair as Text
from evaluation.likelihood import check_fits
from evaluation.probes.probe import Probe, interval_fields, mean_fields, unit_spans
from evaluation.scorer import LanguageModel, Side, score_texts
from experiment.experiment import Experiment
from objectives import Denoiser

Score = Literal["log_likelihood", "pseudo_log_likelihood"]
_SIDE: dict[Score, Side] = {"log_likelihood": "left", "pseudo_log_likelihood": "both"}
Line = TypeVar("Line")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences that differ minimally. Equal sentences, which BLiMP has, are a tie."""

    good: str
    bad: str
    group: str  # "" without a group


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimalPairs(Probe):
    """The share of the pairs of a file whose good sentence has the higher score. A tie counts as one half.

    A sentence's score is the sum over its tokens, without an EOS, of one of:
      log_likelihood: each token's log-probability given the tokens before it: the sentence continues an empty text.
      pseudo_log_likelihood: each token's, or word's, given the rest of the sentence.

    path: the file.
    group: the key of the pairs' group; None: "group".
    score: one of the two scores. "": both for an encoder-decoder that is trained for both; for a single stack
        log_likelihood if it continues texts, else pseudo_log_likelihood.
    unit: what the pseudo-log-likelihood hides at a time: "token" or "word". "": "token".
    """

    path: str | None = None
    group: str | None = None
    score: Literal["", "log_likelihood", "pseudo_log_likelihood"] = ""
    unit: Literal["", "token", "word"] = ""

    name: ClassVar = "minimal_pairs"
    reads_corpus: ClassVar = False
    sides: ClassVar = ("left", "both")

    @property
    def chosen_sides(self):
        return (_SIDE[self.score],) if self.score else self.sides

    def check(self, experiment):
        if self.path is None:
            raise ConfigError("--probe=minimal_pairs needs --path=FILE.jsonl, with 'good' and 'bad' in each line")
        if self.unit and [*self._scores_of(experiment)] == ["log_likelihood"]:
            raise ConfigError(
                f"--unit={self.unit} has no effect on the score log_likelihood: remove it, or add "
                "--score=pseudo_log_likelihood if the model fills in tokens"
            )
        read_pairs(self.path, self.group, experiment.tokenizer)

    def measure(self, model, corpora):
        pairs = read_pairs(self.path, self.group)
        tokenizer = model.experiment.tokenizer
        texts = [tokenizer.encode(sentence) for pair in pairs for sentence in (pair.good, pair.bad)]
        fields = {
            "path": self.path,
            "pairs": len(pairs),
            "tokens": sum(map(len, texts)),
            "bytes": sum(len((pair.good + pair.bad).encode()) for pair in pairs),
            "unknown_tokens": int(sum((text == tokenizer.vocab.unk).sum() for text in texts)),
        }
        for score, denoiser in self._scores_of(model.experiment).items():
            fields[score] = self._accuracy(model, score, denoiser, pairs, texts)
        # The accuracy of a model that has both scores is that of its likelihood.
        first = fields[next(iter(self._scores_of(model.experiment)))]
        fields |= {name: value for name, value in first.items() if name.startswith(("accuracy", "floors"))}
        return fields | interval_fields("pairs, drawn within each group")

    def _scores_of(self, experiment: Experiment) -> dict[Score, Denoiser]:
        """Returns the scores that are computed, each with the denoiser of its layout."""
        denoisers = self.denoisers(experiment)
        if len(denoisers) == 2 and experiment.model.architecture != "encoder_decoder":
            del denoisers["both"]
        return {score: denoisers[side] for score, side in _SIDE.items() if side in denoisers}

    def _accuracy(
        self, model: LanguageModel, score: Score, denoiser: Denoiser, pairs: list[Pair], texts: list[np.ndarray]
    ) -> dict[str, Any]:
        """Returns the JSON fields of one score. texts: the tokens of each pair's good, then of its bad sentence."""
        vocab, unit = model.experiment.vocab, self.unit or "token"
        spans = [[(0, len(text))] if score == "log_likelihood" else unit_spans(text, unit, vocab) for text in texts]
        for number, (text, of_text) in enumerate(zip(texts, spans, strict=True)):
            where = f"--path={self.path}: the {'bad' if number % 2 else 'good'} sentence of pair {number // 2 + 1}"
            check_fits(model.experiment, denoiser, Text(text[:0], text), of_text, where)
        scores = score_texts(model, denoiser, texts, spans, show_progress=True)
        totals = -(scores.nats + scores.unknown_nats).reshape(-1, 2)
        is_same = [np.array_equal(good, bad) for good, bad in zip(texts[::2], texts[1::2], strict=True)]
        difference = np.where(is_same, 0.0, totals[:, 0] - totals[:, 1])  # rounding differs between batches
        values = (np.sign(difference) + 1) / 2
        names, groups = np.unique([pair.group for pair in pairs], return_inverse=True)
        fields = {"denoiser": denoiser.name} | ({"unit": unit} if score == "pseudo_log_likelihood" else {})
        fields |= mean_fields("accuracy", values, groups)
        fields["floors"] = {"chance": 0.5}
        fields["ties"] = int((difference == 0).sum())
        fields["groups"] = {
            str(name): {"pairs": len(own)} | mean_fields("accuracy", own, np.zeros(len(own), int))
            for k, name in enumerate(names)
            if name and len(own := values[groups == k])
        }
        return fields


def read_pairs(path: str, group_field: str | None, tokenizer: Tokenizer | None = None) -> list[Pair]:
    """Returns the pairs of a file, in the file's order.

    group_field: the key of the group, which every line must have; None: "group", which lines may lack.
    tokenizer: makes tokens of each sentence; None: not checked.

    Raises ConfigError, with the number of the line, for a line that is not a pair, and for a file that cannot be read
    or has no pairs.
    """
    return read_lines(path, lambda fields: _pair(fields, group_field, tokenizer), "pairs", "'good' and 'bad'")


def read_lines(path: str, make: Callable[[Any], Line], kind: str, keys: str, *, flag: str = "path") -> list[Line]:
    """Returns what `make` makes of the object in each line of a JSON-lines file, in the file's order.

    make: may raise InvalidRecord. kind, keys, flag: what a line is, in the plural, its keys, and the flag that names
    the file, for messages.

    Raises ConfigError, with the number of the line, for an invalid line, and for a file that cannot be read or has no
    objects.
    """
    found = []
    try:
        with open(os.path.expanduser(path), "rb") as file:
            for number, line in numbered_lines(file):
                try:
                    found.append(make(read_object(line)))
                except InvalidRecord as error:
                    raise ConfigError(f"--{flag}: {path}:{number} {error}: correct that line") from None
    except OSError as error:
        raise ConfigError(f"--{flag}={path} cannot be read ({error.strerror}): name a JSON-lines file") from None
    if not found:
        raise ConfigError(f"--{flag}={path} has no {kind}: write one object with {keys} in each line")
    return found


def _pair(fields, group_field: str | None, tokenizer: Tokenizer | None) -> Pair:
    needed = ["good", "bad", *([group_field] if group_field else [])]
    missing = [key for key in needed if not isinstance(fields, dict) or key not in fields]
    if missing:
        keys = " and ".join([", ".join(map(repr, needed[:-1])), repr(needed[-1])])
        raise InvalidRecord(f"has no {' and no '.join(map(repr, missing))}: a pair is an object with {keys}")
    key = group_field or "group"
    group = string_field(fields, key) if key in fields else ""
    pair = Pair(string_field(fields, "good"), string_field(fields, "bad"), group)
    for name in ("good", "bad"):
        if tokenizer is not None and not len(tokenizer.encode(fields[name])):
            raise InvalidRecord(f"has no tokens in {name!r}")
    return pair
