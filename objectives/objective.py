"""The interface of objectives: raw examples in, inputs and targets out, and what other code needs to know of them."""

import abc
import bisect
import dataclasses
import inspect
import re
from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.ranges import check_ranges
from contract.vocab import Vocab
from contract.windows import Capacity, DocumentHandling
from objectives.algebra.sequences import Sequences
from objectives.prompting import Prompting

Architecture = Literal["encoder_decoder", "decoder_only", "encoder_only"]


class InputsTargets(NamedTuple):
    """Examples that read inputs and predict targets: every denoiser, and CLM with empty inputs."""

    inputs: Sequences
    targets: Sequences
    labels: np.ndarray | None = None  # int32 [E], the class of each example; None without classes
    # int32 [E, W], of each token of the inputs, then of the targets: its place in the text, from 0, of which a decoder
    # reads the tokens in this order; None: the text is the inputs and then the targets.
    places: np.ndarray | None = None
    # int32 [E, W], the decoder position at which each target is predicted, before a mode token shifts the inputs. None:
    # 0, 1, ... in an encoder-decoder, and in a decoder those after the inputs.
    positions: np.ndarray | None = None
    # float32 [E, W], the loss weights of the targets, 0 or more; 0: the token is read, and is not scored. None: 1.
    weights: np.ndarray | None = None


class Masked(NamedTuple):
    """Examples that predict targets in place, at the `selected` positions. All arrays have the inputs' lengths.

    token_types, attention_order, positions and labels become batch fields: encoder_token_types and so on.
    """

    inputs: Sequences
    targets: np.ndarray  # int32 [E, W]
    selected: np.ndarray  # bool [E, W]
    token_types: np.ndarray | None = None  # int32 [E, W]
    attention_order: np.ndarray | None = None  # int32 [E, W]
    labels: np.ndarray | None = None  # int32 [E]
    weights: np.ndarray | None = None  # float32 [E, W], the loss weights of the selected positions; None: 1
    shifted: np.ndarray | None = None  # bool [E], whether a token is predicted where the token before it is read
    causal: np.ndarray | None = None  # bool [E], whether a decoder reads the example causally; None: in both directions
    denominators: np.ndarray | None = None  # float32 [E, W], of the loss, by position; None: the loss weights
    # int32 [E, W], the number of each token's block, from 1: the row then has a clean copy of the text after it
    # (objectives/rows/clean_copies.py). 0 in examples without a copy; None: no example has one.
    blocks: np.ndarray | None = None
    positions: np.ndarray | None = None  # int32 [E, W]; None: 0, 1, ...


class OutputLengths(NamedTuple):
    """The most tokens that examples of given raw lengths can become, int [n] each."""

    inputs: np.ndarray
    targets: np.ndarray
    both: np.ndarray  # inputs plus targets of one example; less than the sum of both bounds if one grows as one shrinks


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The positions of a row, in tokens. Its `examples_per_row` examples have equal shares of them."""

    architecture: Architecture
    inputs_length: int  # encoder positions; with a single stack all positions of the row
    targets_length: int  # decoder positions of an encoder-decoder
    examples_per_row: int

    @property
    def inputs_share(self) -> int:
        """Encoder positions that one example may take; with a single stack, positions."""
        return self.inputs_length // self.examples_per_row

    @property
    def targets_share(self) -> int:
        """Decoder positions of an encoder-decoder that one example may take."""
        return self.targets_length // self.examples_per_row


class Objective(abc.ABC):
    """An objective: raw tokens -> what the model reads and what it predicts.

    Subclasses are frozen dataclasses whose fields are the fields of `config.objective`. The annotation of a number
    field declares its range, as in `noise_density: Annotated[float, "(0, 1)"]`. Five members are abstract:
    `output_lengths`, `corrupt`, `hidden_mask`, `restore` and `prompting`. Objectives that hide tokens and predict them
    subclass `objectives.denoising.Denoising` instead, which derives these five.

    `corrupt` and `hidden_mask` take the optional columns that `extra_columns` lists as keyword arguments: `others`
    (Sequences), `prompt_lengths` (int [E]), `labels` (int [E]), `begins_document` and `ends_document` (bool [E]), and
    `quantiles` (float64 [E]), which hand-made windows may lack.

    A subclass of a concrete objective that changes the examples (`corrupt`, or a Denoising's `noise_mask` and views)
    must also define the inherited members that describe them: `prompting`, `hidden_mask`, `restore`, `byte_metric`,
    `has_inputs`, `most_scored` and `variants`. Defining the class raises TypeError otherwise.
    """

    architectures: ClassVar[frozenset[Architecture]] = frozenset({"decoder_only", "encoder_decoder"})
    documents: ClassVar[tuple[DocumentHandling, ...]] = ("join", "split")  # supported values of data.documents
    eos_in_windows: ClassVar[bool] = False  # whether raw windows contain an EOS after each document
    extra_columns: ClassVar[tuple[str, ...]] = ()  # columns of Windows that `corrupt` takes in addition to tokens
    one_example_per_row: ClassVar[bool] = False  # whether a label or an embedding belongs to the whole row
    has_inputs: ClassVar[bool] = True  # whether there are inputs that a decoder may read bidirectionally
    in_place: ClassVar[bool] = False  # whether `corrupt` makes Masked examples
    causal: ClassVar[bool] = False  # whether a decoder reads examples that are predicted in place causally
    masks_inputs: ClassVar[bool] = False  # whether causal rows read [MASK] in place of some of their targets
    has_attention_order: ClassVar[bool] = False  # whether `corrupt` sets Masked.attention_order
    has_blocks: ClassVar[bool] = False  # whether `corrupt` sets Masked.blocks
    has_places: ClassVar[bool] = False  # whether `corrupt` sets InputsTargets.places
    has_positions: ClassVar[bool] = False  # whether `corrupt` sets InputsTargets.positions
    # With "labels" among extra_columns: the names of the classes, in the order of their ids.
    classes: tuple[str, ...] = ()
    num_token_types: ClassVar[int] = 0  # number of values in Masked.token_types; 0 without token types
    label_names: ClassVar[tuple[str, ...]] = ()  # names of the labels 0, 1, ... that `corrupt` makes
    covers_window: ClassVar[bool] = True  # whether an example is made of the whole window and nothing else
    # Whether targets contain a raw token again, where a decoder has read its first place: the objective trains copying.
    # The leak test then checks the first place alone (tests/test_table.py).
    repeats_targets: ClassVar[bool] = False
    # Where every raw token is scored once: the name of the metric "bits of loss per byte of raw text". It names the
    # scored tokens, so objectives that score other tokens than each other have different names. "" for no such metric.
    byte_metric: ClassVar[str] = ""
    # The number field that is the weight of the learner's auxiliary loss, which a schedule can change; "" without one.
    auxiliary_weight_field: ClassVar[str] = ""
    learner: ClassVar[str] = "token_prediction"  # key of learners.LEARNERS: what is trained on the batch
    device_note: ClassVar[str] = ""  # for train.show: what the training step adds to the examples

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)

        def owner(name: str) -> int:
            return next(k for k, base in enumerate(cls.__mro__) if name in vars(base))

        determining = ("corrupt", "noise_mask", "inputs_view", "targets_view")
        changed = min(owner(name) for name in determining if hasattr(cls, name))
        describing = ("prompting", "hidden_mask", "restore", "byte_metric", "has_inputs", "most_scored", "variants")
        later = [name for name in describing if owner(name) > changed]
        stale = [name for name in later if not inspect.isabstract(cls.__mro__[owner(name)])]
        if stale:
            raise TypeError(
                f"{cls.__name__} changes the examples and inherits {', '.join(stale)} of other examples: "
                f"define {', '.join(stale)} in {cls.__name__} too"
            )

    @property
    @abc.abstractmethod
    def prompting(self) -> Prompting | None:
        """How train.generate prompts a model trained on this objective; None if the model predicts no tokens."""

    @abc.abstractmethod
    def output_lengths(self, raw: np.ndarray) -> OutputLengths:
        """The most tokens that windows of raw lengths, int [n], can become, EOS included."""

    @abc.abstractmethod
    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab):
        """Returns the examples, InputsTargets or Masked, that the objective makes of raw tokens.

        Each example depends on its own tokens, length and key alone.

        Args:
          tokens: int32 [E, W].
          lengths: int [E], 1..W.
          keys: uint64 [E], the only source of randomness.
          vocab: the special ids.
        """

    @abc.abstractmethod
    def hidden_mask(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
        """bool [E, W]: the raw tokens that the inputs of `corrupt` do not show. False after an example's end.

        With "others" among `extra_columns`: bool [E, W + V], the V tokens of the other windows last.
        """

    @abc.abstractmethod
    def restore(self, inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray | None:
        """The raw tokens, int32 [L], of one example from its inputs, int32 [n], and its targets, int32 [m].

        None where inputs and targets do not determine the order, as with T5's dropped tokens. Inputs and targets
        together then contain each raw token once, or twice where the inputs keep some of the targets. Without
        `covers_window`: the raw tokens that the example contains.
        """

    def check(self, field: str) -> list[str]:
        """Returns warnings about the objective's fields. Raises ConfigError for fields that cannot work.

        By default checks the ranges that the annotations of the fields declare (contract/ranges.py), and that a model
        which predicts tokens can be prompted.

        field: the config field of the objective, for messages.
        """
        check_ranges(type(self), vars(self), field)
        # Without this check samples would fail after the last evaluation.
        if self.prompting is None and self.learner == "token_prediction":
            raise ConfigError(
                f"{field}: {type(self).__name__}.prompting is None, and its learner 'token_prediction' predicts tokens:"
                " return one of objectives/prompting.py"
            )
        return []

    def check_window(self, length: int, field: str) -> None:  # noqa: B027  optional
        """Raises ConfigError where a field of the objective has no effect in windows of `length` raw tokens.

        field: the config field of the objective, for messages.
        """

    def special_tokens(self, architecture: Architecture) -> tuple[str, ...]:
        """The fields of Vocab, among mask, cls and sep, whose special tokens the examples contain."""
        return ("cls", "sep") if architecture == "encoder_only" else ()

    def num_sentinels(self, raw: np.ndarray) -> np.ndarray:
        """Upper bound of the number of sentinels that raw lengths, int [n], need: int [n]."""
        return np.zeros_like(raw)

    @property
    def has_denominators(self) -> bool:
        """Whether `corrupt` sets Masked.denominators."""
        return False

    def heldout(self) -> "Objective":
        """Returns the objective of evaluations: this one, or one of which a held-out text's loss varies less."""
        return self

    def variants(self, count: int) -> "tuple[Objective, ...]":
        """Splits the objective into `count` objectives that are equal to it if mixed in equal shares.

        The output lengths of each variant vary less, which makes planned rows fuller (objectives/rows/packing.py).
        Returns (self,) if output lengths do not vary.
        """
        del count
        return (self,)

    def most_scored(self, raw: np.ndarray) -> np.ndarray:
        """Upper bound of the scored positions in examples made from raw lengths, int [n]: int [n].

        Learners compute logits at no more positions than such bounds allow. By default all targets, or all positions if
        the objective predicts in place.
        """
        lengths = self.output_lengths(raw)
        return lengths.both if self.in_place else lengths.targets

    def capacities(self, shape: RowShape) -> tuple[Capacity, ...]:
        """The capacity of each stack of a row for whole documents. Required if `documents` contains "whole"."""
        raise NotImplementedError(f"{type(self).__name__} lists 'whole' in documents, so it must define capacities")

    def expected(self) -> dict[str, float]:
        """Expected statistics of examples, by name; train.show prints them next to the measured ones.

        corrupted: share of the raw tokens that are hidden (`hidden_mask`). spans: runs of hidden tokens in an example.
        span_length: tokens in a run. For Masked examples also selected: share of the positions; masked, random and
        kept: shares of the selected positions.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Number fields of an objective that change linearly during a run, as a mixture's weights do."""

    initial: Objective  # of the batches up to begin_step
    final: Objective  # of the batches from end_step on; it differs from the initial one in `fields` alone
    fields: tuple[str, ...]
    begin_step: int
    end_step: int  # begin_step or more; if both are equal, the fields jump in this batch

    prefix: ClassVar = "final_"  # of the config fields of the later values
    end_field: ClassVar = "end_step"

    @property
    def ends(self) -> tuple[Objective, ...]:
        """The objectives between which all others are."""
        return (self.initial, self.final)

    def at(self, step: int) -> Objective:
        """The objective of batch `step` of the run, counted from 0."""
        if step >= self.end_step:
            return self.final
        if step <= self.begin_step:
            return self.initial
        fraction = (step - self.begin_step) / (self.end_step - self.begin_step)
        ends = {name: (getattr(self.initial, name), getattr(self.final, name)) for name in self.fields}
        values = {name: first + fraction * (last - first) for name, (first, last) in ends.items()}
        return dataclasses.replace(self.initial, **values)  # type: ignore[type-var]

    def check(self, field: str) -> list[str]:
        """Does what Objective.check does for all ends. Messages about a later one name its `final_` fields."""
        warnings = self.ends[0].check(field)
        for later in self.ends[1:]:
            try:
                warnings += [name_later(warning, field, self.fields, self.prefix) for warning in later.check(field)]
            except ConfigError as error:
                raise ConfigError(name_later(str(error), field, self.fields, self.prefix)) from None
        return list(dict.fromkeys(warnings))


@dataclasses.dataclass(frozen=True)
class Phases(Schedule):
    """Number fields of an objective that change at once at the begin of each phase of a run but the first.

    initial, final: the objectives of the first and of the last phase, which begins in batch `end_step`. begin_step: of
    the second phase.
    """

    between: tuple[Objective, ...]  # of the phases but the first and the last
    begins: tuple[int, ...]  # the first batch of each phase but the first, in order

    prefix: ClassVar = "phase_"
    end_field: ClassVar = "phase_steps"

    @property
    def ends(self) -> tuple[Objective, ...]:
        return (self.initial, *self.between, self.final)

    def at(self, step: int) -> Objective:
        return self.ends[bisect.bisect_right(self.begins, step)]


def name_later(message: str, field: str, names: Iterable[str], prefix: str) -> str:
    """A message about a later objective of a schedule with "objective.final_rate" in place of "objective.rate"."""
    return re.sub(rf"\b{re.escape(field)}\.({'|'.join(names)})\b", rf"{field}.{prefix}\1", message)


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """One row of a mixture's table: an objective, its share of the examples, and its mode token.

    With a schedule the objective is the one at its end: that of held-out batches, given texts, probes and generation.
    A single objective is a table with one row. In a run of several corpora each denoiser is divided into one denoiser
    for each corpus that it reads (experiment/tasks.py).
    """

    name: str
    field: str  # the denoiser's config field, for messages
    objective: Objective
    weight: float
    mode: str  # a name in data.mode_tokens, prepended to the inputs; "" for none
    final_weight: float  # the weight at the end of a mixture's schedule
    corpora: tuple[str, ...] = ()  # the names of the corpora that it reads; () for all of them
    corpus: int = 0  # after the division by corpora: the number of the corpus that it reads
    documents: DocumentHandling | None = None  # how windows treat that corpus' documents; None: data.documents
    documents_field: str = "data.documents"  # the config field that decides so, for messages
    schedule: Schedule | None = None  # None: the objective's number fields are constant
    loss_weight: float = 1.0  # of each of its scored tokens in the loss of training, relative to other denoisers

    @property
    def ends(self) -> tuple[Objective, ...]:
        """The objective, and with a schedule the others of `Schedule.ends` before it."""
        return (*self.schedule.ends[:-1], self.objective) if self.schedule else (self.objective,)

    def heldout(self) -> "Denoiser":
        """The denoiser of evaluations: `Objective.heldout`, at the end of a schedule, with a loss weight of 1."""
        return dataclasses.replace(self, objective=self.objective.heldout(), schedule=None, loss_weight=1.0)

    def at(self, step: int) -> "Denoiser":
        """This denoiser with the objective of batch `step` of the run, and without a schedule."""
        return dataclasses.replace(self, objective=self.schedule.at(step), schedule=None) if self.schedule else self

    def output_lengths(self, raw: np.ndarray) -> OutputLengths:
        """The objective's output lengths with the mode token."""
        inputs, targets, both = self.objective.output_lengths(raw)
        return OutputLengths(inputs + bool(self.mode), targets, both + bool(self.mode))

    def variants(self, count: int) -> "tuple[Denoiser, ...]":
        """This denoiser with each of its objective's variants."""
        return tuple(dataclasses.replace(self, objective=variant) for variant in self.objective.variants(count))
