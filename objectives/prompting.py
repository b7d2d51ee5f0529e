"""How a trained model is prompted: how an objective lays out a prompt, and where the model's answer is inserted.

Each class is one way. `text` is the tokens of the prompt; `answer` is the tokens that the model generates, without EOS;
both are int32 [n]. `hide` lays out raw text instead, some of whose tokens are hidden, for evaluation/probes.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from contract import rng
from contract.errors import ConfigError
from contract.vocab import Vocab

PromptKind = Literal["respond", "continue", "infill_middle", "infill_spans", "rewrite", "fill_masks"]


class PromptTokens(NamedTuple):
    """What the model reads before it generates, int32 [n] each, without the mode token."""

    inputs: np.ndarray
    targets_start: np.ndarray  # the tokens that the targets begin with; the model continues them
    position: int | None = None  # of the first token of the targets; None: as without InputsTargets.positions
    places: np.ndarray | None = None  # InputsTargets.places of these tokens, then of the hidden ones (`Prompting.hide`)


class Prompting(abc.ABC):
    """One way to prompt a model."""

    kind: ClassVar[PromptKind]
    allows_empty: ClassVar[bool] = False  # whether the prompt may have no text
    bounds_likelihood: bool = False  # whether the model is trained on the bound of objectives/masked_diffusion.py

    @property
    def of_masks(self) -> "FillMasks | None":
        """How prompts with masks are laid out; None if the model fills in none."""
        return None

    @abc.abstractmethod
    def lay_out(self, text: np.ndarray, vocab: Vocab) -> PromptTokens:
        """Lays out `text` as the objective does in training."""

    def complete(self, text: np.ndarray, answer: np.ndarray, vocab: Vocab) -> np.ndarray:
        """`text` with the answer inserted, int32 [n]: by default at the end."""
        return np.concatenate([text, self.continuation(answer, vocab)])

    def continuation(self, answer: np.ndarray, vocab: Vocab) -> np.ndarray:
        """`answer` without the special tokens that precede it in this objective, int32 [n]."""
        del vocab
        return answer

    def hide(self, text: np.ndarray, start: int, stop: int, vocab: Vocab) -> PromptTokens | None:
        """Lays out raw `text`, with its tokens `start`, ..., `stop` - 1 hidden, as the objective does in training.

        The targets continue with the hidden tokens after `targets_start`. None if the objective hides no such tokens;
        causal models, for example, hide the end of a text alone.
        """
        del text, start, stop, vocab
        return None

    def special_tokens(self, vocab: Vocab) -> np.ndarray:
        """int32 [n]: the special tokens that a prompt may contain."""
        return vocab.sentinels

    def max_sentinels(self, vocab: Vocab) -> int | None:
        """The most sentinels of a prompt, which must be in order; None if they may repeat, in any order."""
        return vocab.num_sentinels

    def demonstration(
        self, tokens: np.ndarray, corrupt: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], vocab: Vocab
    ) -> tuple[np.ndarray, np.ndarray]:
        """A prompt made of raw tokens, int32 [n], and its true answer, for the sample at the end of a run.

        corrupt: raw tokens -> the objective's inputs and targets, without EOS.
        """
        del vocab
        return corrupt(tokens)


class Continue(Prompting):
    """The text begins the targets, and the model continues them: CLM."""

    kind: ClassVar[PromptKind] = "continue"
    allows_empty = True

    def lay_out(self, text, vocab):
        return PromptTokens(np.zeros(0, np.int32), text)

    def hide(self, text, start, stop, vocab):
        return Continue.lay_out(self, text[:start], vocab) if stop == len(text) else None

    def demonstration(self, tokens, corrupt, vocab):
        text, truth = np.split(tokens, [len(tokens) // 2])
        return text, truth


@dataclasses.dataclass(frozen=True)
class ContinueInputs(Prompting):
    """The text is the inputs, and the model writes the targets that continue it: prefix LM.

    sentinel: whether the first sentinel ends the inputs and begins the targets.
    """

    sentinel: bool

    kind: ClassVar[PromptKind] = "continue"

    def lay_out(self, text, vocab):
        ends = [vocab.sentinel(0), vocab.eos] if self.sentinel else [vocab.eos]
        return PromptTokens(_ids([*text, *ends]), _ids([]))

    def hide(self, text, start, stop, vocab):
        if stop < len(text):
            return None
        return self.lay_out(text[:start], vocab)._replace(targets_start=_ids([vocab.sentinel(0)] * self.sentinel))

    demonstration = Continue.demonstration

    def continuation(self, answer, vocab):
        has_sentinel = self.sentinel and answer[:1].tolist() == [vocab.sentinel(0)]
        return answer[1:] if has_sentinel else answer


@dataclasses.dataclass(frozen=True)
class Respond(Prompting):
    """The text is a prompt, and the model writes the response: SFT.

    inputs_eos: whether an EOS ends the prompt.
    """

    inputs_eos: bool

    kind: ClassVar[PromptKind] = "respond"

    def lay_out(self, text, vocab):
        return PromptTokens(_ids([*text, *[vocab.eos] * self.inputs_eos]), _ids([]))

    def hide(self, text, start, stop, vocab):
        return self.lay_out(text[:start], vocab) if stop == len(text) else None


@dataclasses.dataclass(frozen=True)
class InfillMiddle(Continue):
    """The model continues the text, or fills in the place that the first sentinel marks: FIM.

    spm: whether the suffix comes before the prefix (SPM); by default the prefix comes first (PSM).
    """

    spm: bool = False

    kind: ClassVar[PromptKind] = "infill_middle"

    def lay_out(self, text, vocab):
        hole = np.flatnonzero(text == vocab.sentinel(0))
        if not len(hole):
            return super().lay_out(text, vocab)
        prefix_token, suffix_token, middle_token = vocab.sentinels[:3]
        prefix, suffix = text[: hole[0]], text[hole[0] + 1 :]
        if self.spm:
            return PromptTokens(_ids([]), _ids([prefix_token, suffix_token, *suffix, middle_token, *prefix]))
        return PromptTokens(_ids([]), _ids([prefix_token, *prefix, suffix_token, *suffix, middle_token]))

    def hide(self, text, start, stop, vocab):
        if stop == len(text):
            return super().hide(text, start, stop, vocab)
        return self.lay_out(_ids([*text[:start], vocab.sentinel(0), *text[stop:]]), vocab)

    def complete(self, text, answer, vocab):
        if vocab.sentinel(0) in text:
            return replace_sentinels(text, {0: answer}, vocab)
        return super().complete(text, answer, vocab)

    def max_sentinels(self, vocab):
        return 1

    def demonstration(self, tokens, corrupt, vocab):
        prefix, truth, suffix = np.split(tokens, [len(tokens) // 3, len(tokens) // 2])
        return np.concatenate([prefix, [vocab.sentinel(0)], suffix]).astype(np.int32), truth


class InfillSpans(Prompting):
    """The model writes the spans that sentinels in the text replace, each after its sentinel: span corruption."""

    kind: ClassVar[PromptKind] = "infill_spans"

    def lay_out(self, text, vocab):
        return PromptTokens(_ids([*text, vocab.eos]), _ids([]))

    def hide(self, text, start, stop, vocab):
        sentinel = vocab.sentinel(0)
        inputs = self.lay_out(_ids([*text[:start], sentinel, *text[stop:]]), vocab).inputs
        return PromptTokens(inputs, _ids([sentinel]))

    def complete(self, text, answer, vocab):
        return replace_sentinels(text, spans_by_sentinel(answer, vocab), vocab)


@dataclasses.dataclass(frozen=True)
class Rewrite(Prompting):
    """The model reads the text as inputs and writes the targets: BART's original text, T5's dropped tokens.

    hidden_as: what the inputs show in place of hidden tokens: for each run of them one mask or a sentinel of its own
        ("mask", "sentinel"), for each token a mask or the first sentinel ("masks", "sentinels"), or nothing ("gap").
        "": the objective hides no tokens.
    writes: the targets: the whole "text", the hidden "tokens", or these after the first sentinel ("spans").
    """

    hidden_as: Literal["mask", "sentinel", "masks", "sentinels", "gap", ""] = ""
    writes: Literal["text", "tokens", "spans"] = "text"

    kind: ClassVar[PromptKind] = "rewrite"

    def lay_out(self, text, vocab):
        return PromptTokens(_ids([*text, vocab.eos]), _ids([]))

    def hide(self, text, start, stop, vocab):
        if not self.hidden_as:
            return None
        shown = [*self.special_tokens(vocab)[:1]] * (1 if self.hidden_as in ("mask", "sentinel") else stop - start)
        inputs = self.lay_out(_ids([*text[:start], *shown, *text[stop:]]), vocab).inputs
        targets_start = {"text": text[:start], "tokens": [], "spans": [vocab.sentinel(0)]}[self.writes]
        return PromptTokens(inputs, _ids(targets_start))

    def complete(self, text, answer, vocab):
        return answer

    def special_tokens(self, vocab):
        shown = {"sentinel": vocab.sentinel_ids, "sentinels": vocab.sentinel_ids[:1], "gap": (), "": ()}
        return _ids(shown.get(self.hidden_as, [vocab.mask]))

    def max_sentinels(self, vocab):
        return vocab.num_sentinels if self.hidden_as == "sentinel" else None


@dataclasses.dataclass(frozen=True)
class FillBlank(Rewrite):
    """The model writes what one blank of the text hides, at the blank's position: MASS, GLM.

    hidden_as: what a blank is: a [MASK] for each hidden token ("masks"), or one ("mask"). A text without a blank then
        has one at its end, and the model continues it.
    offset: the position of the first token of the targets, from the blank's place in the text.
    """

    writes: Literal["text", "tokens", "spans"] = "tokens"
    offset: int = 0

    def lay_out(self, text, vocab):
        """Raises ConfigError where the text has several blanks, or none and the model does not continue it."""
        places = np.flatnonzero(text == vocab.mask)
        if self.hidden_as == "mask" and not len(places):
            text, places = np.append(text, np.int32(vocab.mask)), np.array([len(text)])
        name, blank = vocab.names()[vocab.mask], "is one" if self.hidden_as == "mask" else "are neighbours, one a token"
        if not len(places) or (len(places) > 1 and (self.hidden_as == "mask" or (np.diff(places) > 1).any())):
            raise ConfigError(
                f"the prompt has {len(places)} {name}, and this run's model fills in one blank, whose {name} {blank}"
            )
        return PromptTokens(_ids([*text, vocab.eos]), _ids([]), int(places[0]) + self.offset)

    def hide(self, text, start, stop, vocab):
        count = 1 if self.hidden_as == "mask" else stop - start
        return self.lay_out(_ids([*text[:start], *[vocab.mask] * count, *text[stop:]]), vocab)

    def complete(self, text, answer, vocab):
        places = np.flatnonzero(text == vocab.mask)
        start, stop = (places[0], places[-1] + 1) if len(places) else (len(text), len(text))
        return _ids([*text[:start], *answer, *text[stop:]])

    def special_tokens(self, vocab):
        return _ids([vocab.mask])

    def demonstration(self, tokens, corrupt, vocab):
        before, truth, after = np.split(tokens, [len(tokens) // 3, max(len(tokens) // 2, 1)])
        masks = [vocab.mask] * (1 if self.hidden_as == "mask" else len(truth))
        return _ids([*before, *masks, *after]), truth


@dataclasses.dataclass(frozen=True)
class FillMasks(Prompting):
    """The model predicts each [MASK] of a text in place: MLM, masked diffusion.

    mask_rate: share of the tokens that a demonstration masks.
    has_ends: whether [CLS] and [SEP] are around the text.
    shifted: whether a token is predicted where the token before it is read (objectives/in_place.py).
    block_length: tokens of a block, whose masks are predicted from it and the blocks before it; 0: from the whole text.
    bounds_likelihood: as in the base class.
    """

    mask_rate: float
    has_ends: bool = True
    shifted: bool = False
    block_length: int = 0
    bounds_likelihood: bool = False

    kind: ClassVar[PromptKind] = "fill_masks"
    order: ClassVar[Literal["margin", "once"]] = "margin"  # of the masks, by default (generate/fill_masks.py)
    causal: ClassVar[bool] = False  # whether a decoder reads the masks causally (Masked.causal)
    visible_first: ClassVar[bool] = False  # whether a decoder reads the visible tokens, and then predicts each mask

    @property
    def of_masks(self):
        return self

    def lay_out(self, text, vocab):
        return PromptTokens(_ids([vocab.cls, *text, vocab.sep] if self.has_ends else text), _ids([]))

    def hide(self, text, start, stop, vocab):
        """As in the base class, but the model predicts each hidden token in place of its mask."""
        return self.lay_out(_ids([*text[:start], *[vocab.mask] * (stop - start), *text[stop:]]), vocab)

    def complete(self, text, answer, vocab):
        """`text` with its masks replaced by `answer`, one token for each mask."""
        filled = text.copy()
        filled[text == vocab.mask] = answer
        return filled

    def attention_order(self, inputs: np.ndarray) -> np.ndarray | None:
        """int32 [E, W]: the attention order of laid-out inputs, int32 [E, W]; None without one."""
        del inputs
        return None

    def special_tokens(self, vocab):
        return _ids([vocab.mask])

    def demonstration(self, tokens, corrupt, vocab):
        count = np.array([max(round(self.mask_rate * len(tokens)), 1)])
        is_masked = rng.choose_mask(np.zeros(1, np.uint64), np.ones((1, len(tokens)), bool), count)[0]
        return np.where(is_masked, vocab.mask, tokens).astype(np.int32), tokens


@dataclasses.dataclass(frozen=True)
class FillResponse(FillMasks):
    """The model reads a prompt and a [MASK] for each token of the response: masked diffusion of responses."""

    mask_rate: float = 0.5
    has_ends: bool = False

    def hide(self, text, start, stop, vocab):
        return super().hide(text, start, stop, vocab) if stop == len(text) else None

    def demonstration(self, tokens, corrupt, vocab):
        is_masked = np.arange(len(tokens)) >= len(tokens) // 2
        return np.where(is_masked, vocab.mask, tokens).astype(np.int32), tokens


@dataclasses.dataclass(frozen=True)
class FillBlocks(FillResponse):
    """The model fills in the [MASK]s of a text block by block, and reads what is before them: block diffusion."""

    def demonstration(self, tokens, corrupt, vocab):
        is_masked = np.arange(len(tokens)) >= (len(tokens) - 1) // self.block_length * self.block_length
        return np.where(is_masked, vocab.mask, tokens).astype(np.int32), tokens


@dataclasses.dataclass(frozen=True)
class RespondAtOnce(FillResponse):
    """FillResponse whose model predicts all tokens of the response at once, reading causally: teacherless."""

    shifted: bool = True

    order = "once"
    causal = True


class ContinueAnyOrder(Continue):
    """The model continues a text from left to right, or fills in its [MASK]s: any order."""

    @property
    def of_masks(self):
        return FillAnyOrder()

    def hide(self, text, start, stop, vocab):
        """As in the base class: the model reads the visible tokens from left to right, and then the hidden ones."""
        visible = np.delete(np.arange(len(text)), np.s_[start:stop])
        return PromptTokens(_ids([]), text[visible], places=_ids([*visible, *range(start, stop)]))


@dataclasses.dataclass(frozen=True)
class FillAnyOrder(FillMasks):
    """The model reads the visible tokens from left to right, and predicts each [MASK] as the token that is next.

    Each mask is predicted from the visible tokens alone, as in the bursts of sigma-GPT (arXiv 2404.09562). They
    are laid out first, and the masks after them.
    """

    mask_rate: float = 0.5
    has_ends: bool = False
    shifted: bool = True

    causal = True
    visible_first = True

    def lay_out(self, text, vocab):
        is_mask = text == vocab.mask
        return PromptTokens(np.concatenate([text[~is_mask], text[is_mask]]), _ids([]))


def _ids(tokens) -> np.ndarray:
    return np.array(tokens, np.int32)


def spans_by_sentinel(answer: np.ndarray, vocab: Vocab) -> dict[int, np.ndarray]:
    """Returns sentinel number -> the tokens in `answer`, int [n], between that sentinel and the next sentinel.

    Sentinels may be in any order. If a sentinel repeats, its first span is returned. Tokens before the first sentinel
    are dropped.
    """
    starts = np.flatnonzero(np.isin(answer, vocab.sentinels))
    number = {id_: k for k, id_ in enumerate(vocab.sentinel_ids)}
    spans: dict[int, np.ndarray] = {}
    for span in np.split(answer, starts)[1:]:
        spans.setdefault(number[int(span[0])], span[1:])
    return spans


def replace_sentinels(text: np.ndarray, spans: dict[int, np.ndarray], vocab: Vocab) -> np.ndarray:
    """`text`, int [n], with each sentinel of `spans` replaced by its tokens, int32. Other sentinels remain."""
    number = {int(vocab.sentinel(k)): k for k in spans}
    parts = [spans[number[token]] if token in number else [token] for token in text.tolist()]
    return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)
