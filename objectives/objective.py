"""What an objective makes of raw examples, before a layout places them in rows, and what it must offer to do so."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import Capacity
from objectives.algebra.sequences import Sequences
from objectives.rows.lengths import OutputLengths, RowShape


class InputsTargets(NamedTuple):
    """Read the inputs, predict the targets: every denoiser, and CLM with empty inputs."""

    inputs: Sequences
    targets: Sequences
    labels: np.ndarray | None = None  # int32 [E]; None where the objective has no classes


class Masked(NamedTuple):
    """Predict the targets where `selected`, in place. All share the lengths of the inputs.

    The last three are None where the objective has no use for them; they go to the batch's fields of like names.
    """

    inputs: Sequences
    targets: np.ndarray  # int32 [E, W]
    selected: np.ndarray  # bool [E, W]
    token_types: np.ndarray | None = None  # int32 [E, W]
    attention_order: np.ndarray | None = None  # int32 [E, W]
    labels: np.ndarray | None = None  # int32 [E]


class Objective(Protocol):
    """tokens -> what to read and what to predict. A frozen dataclass whose fields are config fields.

    `corrupt` and `hidden` also get, as keywords, what `reads` names of an example beside its tokens: others
    (Sequences), prompt_lengths (int [E]), labels (int [E]); see contract/batch.py, Windows.
    """

    architectures: ClassVar[frozenset[str]]
    documents: ClassVar[tuple[str, ...]]  # the values of data.documents that it can work with
    eos_in_windows: ClassVar[bool]  # whether raw windows hold an EOS after each document
    extra_columns: ClassVar[
        tuple[str, ...]
    ] = ()  # where "labels" is among them, `classes` are their names: tuple[str, ...]
    covers_window: ClassVar[bool] = True  # whether an example tells all of its window, in order, and nothing else
    one_example_per_row: ClassVar[bool] = False  # whether it learns one thing of each row, a label for one
    num_token_types: ClassVar[int] = 0  # values in `Masked.token_types`; 0 where it has none
    label_names: ClassVar[tuple[str, ...]] = ()  # what labels 0, 1, ... say, where it makes them itself
    device_note: ClassVar[str] = ""  # what the step itself makes of examples, which train.show cannot, in a few words
    has_attention_order: ClassVar[bool] = False  # whether it makes a `Masked.attention_order`

    def check(self, field: str) -> Iterable[str]:
        """Raises ConfigError for fields that cannot work, `where` being their place; returns warnings."""

    def output_lengths(self, raw: np.ndarray) -> OutputLengths:
        """The most that raw lengths, int [n], can give, EOS included."""

    def parts(self, count: int) -> "tuple[Objective, ...]":
        """Corruptions that, each as often as the others, are this one, with output lengths that vary less: `count` of
        them, or this one alone where lengths do not vary."""
        return (self,)

    def num_sentinels(self, raw: np.ndarray) -> np.ndarray:
        """The most sentinels that raw lengths, int [n], can need."""

    def capacities(self, shape: RowShape) -> tuple[Capacity, ...]:
        """What a document takes of a row's stacks; asked of corruptions that work with data.documents="whole"."""

    def expected(self) -> dict[str, float]:
        """What its fields ask of examples on average; train.show puts it beside what it measures. Of these, any:

        corrupted: share of the raw tokens that the inputs do not show where they stood; spans: runs of those in an
        example; span_length: tokens in a run; rearranged: share of the examples whose targets tell the whole text, but
        in another order. Of a Masked also selected: share of the positions; masked, random and kept: shares of the
        selected.
        """

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab):
        """tokens int32 [E, W], lengths int [E], keys uint64 [E] -> InputsTargets or Masked."""

    def hidden(self, tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray, vocab: Vocab) -> np.ndarray:
        """bool [E, W]: the raw tokens that the inputs of `corrupt` show nowhere. False after an example's end.

        Where it reads others, [E, W + V] with theirs, [E, V], after the example's own.
        """

    def restore(self, inputs: np.ndarray, targets: np.ndarray, vocab: Vocab) -> np.ndarray | None:
        """The raw tokens, int32 [L], of one example: inputs int32 [n] and targets int32 [m] as `corrupt` made them.

        None where they do not tell the order, as T5's "drop" does not: then they hold each raw token once. Of a
        corruption without `whole_text` what the example tells instead, of its own raw tokens and of the others.
        """


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """One row of an objective's table: a corruption, its share of the examples, and its mode token."""

    name: str
    field: str  # its config field, for messages
    objective: Objective
    weight: float
    mode: str  # a name in data.mode_tokens, put before the inputs; "" for none
    final_weight: float  # the weight at the end of a mixture's schedule

    def output_lengths(self, raw: np.ndarray) -> OutputLengths:
        """Those of the corruption, and the mode token."""
        inputs, targets, both = self.objective.output_lengths(raw)
        return OutputLengths(inputs + bool(self.mode), targets, both + bool(self.mode))

    def parts(self, count: int) -> "tuple[Denoiser, ...]":
        """The denoiser with each of its corruption's parts."""
        return tuple(dataclasses.replace(self, objective=part) for part in self.objective.parts(count))


def check_density(density: float, field: str) -> None:
    """Raises ConfigError for a corruption rate outside (0, 1), found at config field `field`."""
    if not 0 < density < 1:
        raise ConfigError(f"{field}={density} must lie between 0 and 1, both excluded; T5 and BERT use 0.15")
