"""The probes of held-out text: continuation, infilling and the pseudo-log-likelihood, in nats per byte.

All runs over one corpus and tokenizer are scored on the same windows of the same documents, whatever their objective,
seed and lengths.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from contract import rng
from contract.errors import ConfigError
from data.tokenizers.tokenizer import Tokenizer
from data.windows.documents import Documents, MixedDocuments
from evaluation.floors import hidden_nats, train_tokens_field
from evaluation.probes.probe import (
    Probe,
    Unit,
    interval_fields,
    ratio_interval,
    ratio_stderr,
    unit_spans,
    with_interval,
)
from evaluation.scorer import LanguageModel, TextScores, score_texts
from objectives import Denoiser
from objectives.prompting import FillMasks
from run.corpus import Corpora

_SEED = rng.seed_bits(0, "probe")  # the same for every run, so that all runs are scored on the same text
_OFFSET, _CHOICE, _SPAN = range(3)  # tags of keys


class Window(NamedTuple):
    """A run of tokens of a document."""

    document: int  # its number among the documents that are used; documents of equal text, or of one prompt, share one
    tokens: np.ndarray  # int32 [n], raw text
    key: np.ndarray  # uint64 [1], the window's random key

    def span(self, length: int) -> tuple[int, int]:
        """Start and end of `length` tokens at a random place with at least one token before and one after them.

        The place is a function of the window and of `length` alone. The window has at least `length` + 2 tokens.
        """
        start = int(rng.integers(rng.fold_in(self.key, _SPAN + length), 1, len(self.tokens) - length - 1)[0])
        return start, start + length


def heldout_windows(
    documents: Documents | MixedDocuments, *, count: int, windows_per_document: int, length: int, shortest: int
) -> list[Window]:
    """Returns windows of the first `count` documents in a fixed random order.

    The order and the windows are functions of the documents' contents alone, not of a run's seed, objective or lengths.
    A window never contains the first token of a document, to which SentencePiece adds a space that is not in the text.

    Args:
      documents: the held-out documents, of all corpora. Those with fewer than `shortest` + 1 tokens are excluded.
      windows_per_document: the most windows of a document, at least 1. They do not overlap.
      length: tokens in a window, `shortest` or more. A shorter document is one window.
      shortest: the fewest tokens in a window, at least 1.

    Raises ConfigError if no document is long enough.
    """
    digests = np.concatenate([part.store.digests[part.index] for part in documents.by_corpus])
    first = np.cumsum([0, *map(len, documents.by_corpus)])  # the number of the first document of each part
    keys = rng.mix64(digests ^ np.uint64(_SEED))
    windows: list[Window] = []
    numbers: dict[int, int] = {}  # of each key
    num_documents = 0
    for i in np.argsort(keys, kind="stable"):
        part = int(np.searchsorted(first, i, side="right")) - 1
        tokens = documents.by_corpus[part].tokens(int(i - first[part]))[1:]
        if len(tokens) < shortest:
            continue
        number = numbers.setdefault(int(keys[i]), num_documents)
        windows += _windows_of(tokens, keys[i : i + 1], number, windows_per_document, length)
        num_documents += 1
        if num_documents == count:
            break
    if not windows:
        raise ConfigError(
            f"none of the {len(documents)} held-out documents has {shortest + 1} tokens, the fewest that this probe "
            "can use: add longer documents to data.path, or raise data.heldout_fraction"
        )
    return windows


def _windows_of(tokens: np.ndarray, key: np.ndarray, document: int, most: int, length: int) -> list[Window]:
    """The windows of one document, at most `most`. key: uint64 [1], the document's."""
    fitting = len(tokens) // length
    if not fitting:
        return [Window(document, tokens.astype(np.int32), rng.fold_in(key, _CHOICE))]
    # A row of windows without gaps at a random offset, of which at most `most` are chosen.
    offset = int(rng.integers(rng.fold_in(key, _OFFSET), 0, len(tokens) - fitting * length)[0])
    chosen = rng.choose(rng.fold_in(key, _CHOICE), np.ones((1, fitting), bool), np.array([min(most, fitting)]))[0]
    starts = offset + chosen * length
    keys = rng.bits_at(np.repeat(key, len(starts)), starts)
    return [
        Window(document, tokens[start : start + length].astype(np.int32), keys[k : k + 1])
        for k, start in enumerate(starts.tolist())
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextProbe(Probe):
    """A probe of windows of held-out text.

    num_documents: how many documents; ALL: all.
    windows_per_document: the most windows of a document.
    length: tokens in a window; a shorter document is one window. At most the default, a row of the run, or the two
        rows of an encoder-decoder, whichever is longer.
    text_only: whether a token's probability is among the tokens of text (evaluation.scorer.text_tokens): without
        sentinels, mode tokens, EOS and other special tokens, which a hidden text does not have. A model that is trained
        to write short spans expects a sentinel or an EOS after a few tokens; otherwise the probability of these counts
        against it.
    """

    num_documents: Annotated[int, "[1, 2**31)"] = 256
    windows_per_document: Annotated[int, "[1, 2**31)"] = 4
    length: Annotated[int, "[2, 2**31)"] = 96
    text_only: bool = False

    def check(self, experiment):
        row, model = experiment.row_shape, experiment.model
        is_pair = model.has_encoder and model.has_decoder
        most = max(row.inputs_length + row.targets_length * is_pair, TextProbe.length)
        if self.length > most:
            raise ConfigError(f"--length={self.length} is longer than a row of the run: set --length={most} or less")

    def described(self, denoiser: Denoiser) -> dict[str, Any]:
        """Returns the first JSON fields: how the text is scored."""
        return {"denoiser": denoiser.name, "length": self.length, "text_only": self.text_only}

    def windows(self, documents: Documents | MixedDocuments, shortest: int) -> list[Window]:
        """Returns the windows, of `shortest` tokens or more. Raises ConfigError if no document is long enough."""
        return heldout_windows(
            documents,
            count=self.num_documents,
            windows_per_document=self.windows_per_document,
            length=self.length,
            shortest=shortest,
        )

    def score(
        self,
        model: LanguageModel,
        denoiser: Denoiser,
        windows: Sequence[Window],
        spans: Sequence[Sequence[tuple[int, int]]],
        corpora: Corpora,
        draws: int = 0,
    ) -> "HiddenText":
        """Returns what the model predicts of the hidden tokens of `windows`, with floors.

        spans: start and end of the spans of each window, which are hidden one at a time. draws: as in `score_texts`.
        """
        texts = [window.tokens for window in windows]
        scores = score_texts(model, denoiser, texts, spans, text_only=self.text_only, draws=draws, show_progress=True)
        reads_span = draws > 0 or not isinstance(denoiser.objective.prompting, FillMasks)
        floors = hidden_nats(
            model.experiment, texts, spans, corpora.train_documents, reads_span=reads_span, text_only=self.text_only
        )
        return HiddenText(np.array([window.document for window in windows]), scores, floors)

    def explained(self, corpora: Corpora) -> dict[str, Any]:
        """Returns the last JSON fields: how intervals and floors are taken."""
        return interval_fields("documents") | train_tokens_field(corpora)


@dataclasses.dataclass(frozen=True)
class HiddenText:
    """What a model predicted of the hidden tokens of n windows."""

    documents: np.ndarray  # int [n]
    scores: TextScores
    floors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # name -> nats of an n-gram model

    def counts(self) -> dict[str, int]:
        """Returns the counts as JSON fields."""
        return {
            "documents": len(np.unique(self.documents)),
            "windows": len(self.documents),
            **{name: int(getattr(self.scores, name).sum()) for name in ("tokens", "bytes", "unknown_tokens")},
        }

    def per_byte(self, prefix: str = "") -> dict[str, Any]:
        """Returns nats and bits per byte as JSON fields, whose names begin with `prefix`, with intervals and floors.

        The floors (evaluation/floors.py) are in bits per byte, in the field `floors` with the same prefix.
        """
        units = {f"{prefix}nats_per_byte": 1.0, f"{prefix}bits_per_byte": 1 / math.log(2)}
        fields = self._ratio(units, self.scores.nats, self.scores.bytes)
        if fields and self.floors:
            floors = {name: self._by_document(nats, self.scores.bytes) for name, nats in self.floors.items()}
            bits = {name: top.sum() / bottom.sum() / math.log(2) for name, (top, bottom) in floors.items()}
            fields[f"{prefix}floors"] = {name: float(value) for name, value in bits.items()}
        return fields

    def exact_match(self) -> dict[str, Any]:
        """Returns the share of exact windows as JSON fields, with its interval over documents."""
        return self._ratio({"exact_match": 1.0}, self.scores.is_exact, np.ones(len(self.documents)))

    def _ratio(self, units: dict[str, float], numerators: np.ndarray, denominators: np.ndarray) -> dict[str, Any]:
        """Returns the ratio of two sums over windows, with its spread over documents, times the factor of each unit.

        {} where the denominators are 0.
        """
        top, bottom = self._by_document(numerators, denominators)
        if not len(bottom):
            return {}
        value = float(top.sum() / bottom.sum())
        interval, stderr = ratio_interval(top, bottom), ratio_stderr(top, bottom)
        fields: dict[str, Any] = {}
        for name, factor in units.items():
            scaled = interval and [end * factor for end in interval]
            fields |= with_interval(name, value * factor, scaled, None if stderr is None else stderr * factor)
        return fields

    def _by_document(self, numerators: np.ndarray, denominators: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sums over the windows of each document whose denominator is above 0."""
        top, bottom = (np.bincount(self.documents, values) for values in (numerators, denominators))
        return top[bottom > 0], bottom[bottom > 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continuation(TextProbe):
    """Hides the second half of each window, and scores it teacher-forced.

    The model reads the first half as it reads a text to continue in training: a causal model as the start of the
    targets, prefix LM and encoder-decoders as inputs, with the objective's mode token and sentinel. The text alone is
    scored, not the sentinel before it or an EOS after it, so all models are scored on the same tokens.

    draws: of masked diffusion: random parts of each second half that are hidden (evaluation.scorer.hide_parts). The
        nats are an estimate of the bound, whose noise is in the intervals.
    """

    draws: Annotated[int, "[1, 2**16]"] = 32

    name: ClassVar = "continuation"
    sides: ClassVar = ("left", "bound")

    def measure(self, model, corpora):
        side, denoiser = next(iter(self.denoisers(model.experiment).items()))
        windows = self.windows(corpora.heldout_documents, shortest=2)
        halves = [[(len(window.tokens) // 2, len(window.tokens))] for window in windows]
        draws = self.draws if side == "bound" else 0
        result = self.score(model, denoiser, windows, halves, corpora, draws)
        fields = self.described(denoiser) | ({"draws": draws} if draws else {}) | result.counts() | result.per_byte()
        return fields | self.explained(corpora)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infilling(TextProbe):
    """Hides one span of each window, of each of the lengths `spans`, in the form that the objective hides spans.

    Span corruption and UL2 show a sentinel, BART its mask, FIM the suffix before the middle. exact_match is the share
    of windows in which greedy decoding writes the true span; whether the model then ends the span is not measured.

    whitespace_span_fraction is the share of the hidden spans that are whitespace only, such as indentation. Such spans
    are easy to fill in, so a model that has learned little else has about this exact match. The fraction depends on the
    text and the tokenizer, not on the model.

    Encoders show one mask for each token and predict the hidden tokens independently of each other, so the sum of their
    nats is not the likelihood of the span. This sum is named masked_nats_per_byte, and exact_match is then of the
    likeliest token at each mask. Masked diffusion has nats_per_byte too, as in Continuation, of `draws` hidden parts.
    """

    spans: tuple[Annotated[int, "[1, 2**18]"], ...] = (3, 8, 32)
    draws: Annotated[int, "[1, 2**16]"] = 32

    name: ClassVar = "infilling"
    sides: ClassVar = ("both",)

    def check(self, experiment):
        super().check(experiment)
        if max(self.spans) + 2 > self.length:
            raise ConfigError(
                f"--length={self.length} has no room for a hidden span of {max(self.spans)} tokens and a token on each "
                f"side: set --length={max(self.spans) + 2} or more, or shorter --spans"
            )

    def measure(self, model, corpora):
        denoiser = self.denoisers(model.experiment)["both"]
        prompting, by_length = denoiser.objective.prompting, {}
        prefix = "masked_" if isinstance(prompting, FillMasks) else ""
        for length in self.spans:
            windows = self.windows(corpora.heldout_documents, shortest=length + 2)
            spans = [[window.span(length)] for window in windows]
            result = self.score(model, denoiser, windows, spans, corpora)
            fields = result.counts() | result.exact_match()
            fields["whitespace_span_fraction"] = _whitespace_span_fraction(windows, length, model.experiment.tokenizer)
            by_length[str(length)] = fields | result.per_byte(prefix)
            if prompting.bounds_likelihood:
                bound = self.score(model, denoiser, windows, spans, corpora, self.draws)
                by_length[str(length)] |= {"draws": self.draws} | bound.per_byte()
        return self.described(denoiser) | {"spans": by_length} | self.explained(corpora)


def _whitespace_span_fraction(windows: Sequence[Window], length: int, tokenizer: Tokenizer) -> float:
    """Returns the share of `windows` whose span of `length` tokens is whitespace only."""
    spans = [window.tokens[slice(*window.span(length))] for window in windows]
    # SentencePiece drops a space at the start of the decoded text, so a span that is one space decodes to "".
    return sum(not tokenizer.decode(span).strip() for span in spans) / len(spans)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoLogLikelihood(TextProbe):
    """Hides one `unit` of a window at a time, and scores it given the rest of the window.

    The pseudo-log-likelihood of a text (Salazar et al. 2020, "Masked Language Model Scoring") is the sum of the
    log-probabilities of its tokens, each predicted from all other tokens. It is not the logarithm of a probability of
    the text and cannot be compared with a left-to-right model's likelihood.

    unit: "token", as in Salazar et al., or "word": all tokens of a word at once (objectives/algebra/words.py), so that
        a token is not predicted from the rest of its own word. An encoder predicts the tokens of a word independently.
    """

    unit: Unit = "token"

    name: ClassVar = "pseudo_log_likelihood"
    sides: ClassVar = ("both",)

    def measure(self, model, corpora):
        denoiser, vocab = self.denoisers(model.experiment)["both"], model.experiment.vocab
        windows = self.windows(corpora.heldout_documents, shortest=2)
        units = [unit_spans(window.tokens, self.unit, vocab) for window in windows]
        result = self.score(model, denoiser, windows, units, corpora)
        fields = self.described(denoiser) | {"unit": self.unit} | result.counts() | result.per_byte("pseudo_")
        return fields | self.explained(corpora)
