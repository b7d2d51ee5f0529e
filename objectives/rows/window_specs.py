"""The windows and the logits that a table of denoisers needs for rows of a given shape, before any text is read."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import BatchSpec, Capacity, DocumentHandling, Ramp, WindowSpec
from objectives.objective import Denoiser, OutputLengths, RowShape, Schedule
from objectives.rows.packing import plan_cycle, warnings_about


def make_batch_spec(
    denoisers: Sequence[Denoiser],
    row_shape: RowShape,
    vocab: Vocab,
    *,
    documents: DocumentHandling,
    packing: Literal["equal", "planned"] = "equal",
    mix_by: Literal["example", "token"] = "example",
    ramp: tuple[int, int] | None = None,
    on_unusable: Literal["error", "skip"] = "error",
) -> tuple[BatchSpec, list[str]]:
    """Returns the windows for rows of `row_shape`, and warnings to print.

    Args:
      denoisers: the table.
      row_shape: the positions of a row.
      vocab: the special ids.
      documents, on_unusable: as in WindowSpec. A denoiser's own `documents` replace the former.
      packing: how the examples of a row share it: in "equal" parts, or "planned" by objectives/rows/packing.py.
      mix_by: what the weights are shares of: "example" or raw "token".
      ramp: the example numbers between which the shares change from the weights to the final weights; None if constant.

    Raises ConfigError for an unsupported architecture or document handling, invalid fields of an objective, lengths
    that cannot fit, too few sentinels, and unknown mode tokens.
    """
    warnings, plan = [], None
    handling = [denoiser.documents or documents for denoiser in denoisers]
    for denoiser, of_denoiser in zip(denoisers, handling, strict=True):
        warnings += (denoiser.schedule or denoiser.objective).check(denoiser.field)
        _check_supported(denoiser, row_shape, of_denoiser)
        if denoiser.schedule:
            _check_equal_lengths(denoiser, denoiser.schedule, row_shape)
        if denoiser.mode:
            vocab.mode(denoiser.mode)
    if packing == "planned":
        _check_plannable(row_shape, handling, ramp, mix_by)
        planned = plan_cycle(denoisers, row_shape)
        plan = planned.rows
        warnings += warnings_about(planned, row_shape)
    weights = np.bincount(plan.denoiser_ids.ravel()).tolist() if plan else [denoiser.weight for denoiser in denoisers]
    final_weights = [denoiser.final_weight for denoiser in denoisers]

    specs = []
    for k, denoiser in enumerate(denoisers):
        objective = denoiser.objective
        capacities = _capacities(denoiser, row_shape) if handling[k] == "whole" else ()
        if plan:
            raw_length = int(plan.lengths_of(k).max())
        elif capacities:
            raw_length = longest_document(capacities, row_shape, denoiser.name)
        else:
            raw_length = longest_window(denoiser.output_lengths, row_shape, denoiser.name)
        for end in denoiser.ends:
            end.check_window(raw_length, denoiser.field)
        spec = WindowSpec(
            name=denoiser.name,
            weight=weights[k] / sum(weights),
            raw_length=raw_length,
            documents=handling[k],
            eos=objective.eos_in_windows,
            extra_columns=objective.extra_columns,
            ramp=Ramp(*ramp, final_weights[k] / sum(final_weights)) if ramp else None,
            capacities=capacities,
            classes=objective.classes,
            on_unusable=on_unusable,
            corpus=denoiser.corpus,
        )
        specs.append(spec)
    _check_sentinels(denoisers, specs, vocab)
    return BatchSpec(tuple(specs), row_shape.examples_per_row, vocab.pad, mix_by, plan), list(dict.fromkeys(warnings))


def most_scored(denoisers: Sequence[Denoiser], spec: BatchSpec, row_shape: RowShape) -> int:
    """Returns an upper bound of the positions with a loss weight in a row: for every text and every random draw.

    Where documents determine how many examples a row has ("pack", "whole"), the bound is the length of the row, or half
    of it where half of each example is a clean copy.

    Args:
      denoisers: the table.
      spec: the windows of the rows.
      row_shape: the positions of the rows.
    """
    length = row_shape.targets_length if row_shape.architecture == "encoder_decoder" else row_shape.inputs_length
    if any(window.documents in ("pack", "whole") for window in spec.windows):
        return length // 2 if all(denoiser.objective.has_blocks for denoiser in denoisers) else length
    if spec.plan is None:
        bounds = [
            _most_scored_up_to(denoiser, w.raw_length)[-1] for denoiser, w in zip(denoisers, spec.windows, strict=True)
        ]
        return min(length, spec.examples_per_row * int(max(bounds)))
    bounds_of_examples = np.zeros(spec.plan.raw_lengths.shape, np.int64)
    for k, denoiser in enumerate(denoisers):
        for k_variant, variant in enumerate(denoiser.variants(spec.plan.num_variants(k))):
            chosen = (spec.plan.denoiser_ids == k) & (spec.plan.variant_ids == k_variant)
            of_lengths = _most_scored_up_to(variant, int(spec.plan.raw_lengths.max()))
            bounds_of_examples[chosen] = of_lengths[spec.plan.raw_lengths[chosen] - 1]
    return min(length, int(bounds_of_examples.sum(axis=1).max()))


def _most_scored_up_to(denoiser: Denoiser, longest: int) -> np.ndarray:
    """int64 [longest]: the bound of the examples of windows of 1, ..., longest tokens and of shorter windows."""
    of_lengths = [end.most_scored(np.arange(1, longest + 1)) for end in denoiser.ends]
    return np.maximum.accumulate(np.max(of_lengths, axis=0))


def _capacities(denoiser: Denoiser, row_shape: RowShape) -> tuple[Capacity, ...]:
    """The objective's capacities with the mode token."""
    first, *others = denoiser.objective.capacities(row_shape)
    return first._replace(special=first.special + bool(denoiser.mode)), *others


def _check_supported(denoiser: Denoiser, row_shape: RowShape, documents: str) -> None:
    objective = denoiser.objective
    supported = {
        "model.architecture": (row_shape.architecture, sorted(objective.architectures)),
        denoiser.documents_field: (documents, objective.documents),
        "data.examples_per_row": (row_shape.examples_per_row, [1] if objective.one_example_per_row else None),
    }
    for field, (value, values) in supported.items():
        if values is not None and value not in values:
            raise ConfigError(
                f"{field}={value!r} does not go with {denoiser.field} ({type(objective).__name__}): use "
                f"{' or '.join(map(repr, values))}"
            )
    if documents == "pack":
        _check_packed(denoiser, row_shape)


def _check_packed(denoiser: Denoiser, row_shape: RowShape) -> None:
    if denoiser.mode:
        raise ConfigError(
            f"{denoiser.field}.mode={denoiser.mode!r} would be added to each document's piece of a window, for which "
            f"{denoiser.documents_field}='pack' leaves no place: use 'join' or 'split', or set the mode to ''"
        )
    # Each document's piece is a segment, and each segment reads one EOS in the encoder.
    segments = row_shape.targets_length // 2 + 1
    if row_shape.architecture == "encoder_decoder" and row_shape.inputs_length < segments:
        raise ConfigError(
            f"data.inputs_length={row_shape.inputs_length} is too short for data.documents='pack': a row of "
            f"{row_shape.targets_length} targets can hold {segments} documents; set data.inputs_length={segments} "
            "or more"
        )


def _check_plannable(
    row_shape: RowShape, handling: Sequence[DocumentHandling], ramp: tuple[int, int] | None, mix_by: str
) -> None:
    """Raises ConfigError for settings with which the rows of a run cannot be planned from the lengths of full windows.

    handling: what the windows of each denoiser do at the end of a document.
    """
    if row_shape.examples_per_row == 1:
        raise ConfigError(
            "data.packing='planned' divides rows among several examples: set data.examples_per_row=2 or more"
        )
    if unplannable := [documents for documents in handling if documents not in ("join", "split")]:
        raise ConfigError(
            f"data.packing='planned' plans windows, and with data.documents={unplannable[0]!r} documents determine "
            "them: use 'join' or 'split', or data.packing='equal'"
        )
    if mix_by == "token":
        raise ConfigError(
            "data.packing='planned' plans shares of the examples: set mix_by='example' in objective (in data with "
            "several corpora), or data.packing='equal'"
        )
    if ramp:
        raise ConfigError(
            "data.packing='planned' has one plan for the whole run, and the mixture's weights change during the run: "
            "set data.packing='equal', or objective.schedule='constant'"
        )


def _check_equal_lengths(denoiser: Denoiser, schedule: Schedule, row_shape: RowShape) -> None:
    """Raises ConfigError where examples become longer or shorter during a schedule: windows have one length."""
    raw = np.arange(1, row_shape.inputs_length + row_shape.targets_length + 1)
    first, *others = (np.stack(end.output_lengths(raw)) for end in denoiser.ends)
    if any((first != other).any() for other in others):
        named = " and ".join(f"{denoiser.field}.{schedule.prefix}{name}" for name in schedule.fields)
        raise ConfigError(
            f"{named} would change the lengths of examples, and with them the windows of the run: set the later value "
            "to the first one, or change the shares of two denoisers of a mixture instead"
        )


def _check_sentinels(denoisers: Sequence[Denoiser], specs: Sequence[WindowSpec], vocab: Vocab) -> None:
    """Raises ConfigError, with what suffices for all denoisers, where the vocabulary has too few sentinels."""
    needed = {
        spec: max(int(end.num_sentinels(np.arange(1, spec.raw_length + 1)).max()) for end in denoiser.ends)
        for denoiser, spec in zip(denoisers, specs, strict=True)
    }
    most = max(needed, key=needed.__getitem__)
    if needed[most] > vocab.num_sentinels:
        raise ConfigError(
            f"data.num_sentinels={vocab.num_sentinels} is too few for {most.name}: its windows of {most.raw_length} "
            f"tokens need {needed[most]}; set data.num_sentinels={needed[most]} or more, or lower data.inputs_length"
        )


def longest_window(output_lengths: Callable[[np.ndarray], OutputLengths], row: RowShape, name: str) -> int:
    """The length of the longest window of which inputs and targets fit a row, and those of all shorter windows too.

    As in T5's `random_spans_helper`, the inputs of an encoder-decoder determine the window, and targets that do not fit
    are an error. Targets that are only one token too long shorten the window, as in T5 at density .5.
    Deviation: lengths are exactly those of the noise mask. T5's helper sometimes counts zero spans, and the window is
    then one token too long (128 inputs, density .15, mean span length 64).

    Args:
      output_lengths: raw lengths, int [n] -> output lengths with EOS, sentinels and mode token.
      row: the positions of a row.
      name: the denoiser's name, for messages.

    Raises ConfigError where nothing fits, with the lengths that would.
    """
    raw = np.arange(1, 64 * (row.inputs_length + row.targets_length))
    inputs, targets, both = output_lengths(raw)
    if row.architecture != "encoder_decoder":
        inputs, targets = both, np.zeros_like(both)
    by_inputs = _count_leading(inputs <= row.inputs_share)
    window = _count_leading((inputs <= row.inputs_share) & (targets <= row.targets_share))
    if by_inputs == 0:
        raise ConfigError(
            f"data.inputs_length={row.inputs_length} is too short for {name}{_examples_text(row)}: "
            f"set it to {int(inputs[0]) * row.examples_per_row} or more"
        )
    inputs_limit = by_inputs < len(raw)
    if window == 0 or (inputs_limit and targets[by_inputs - 1] > row.targets_share + 1):
        needed = int(targets[:by_inputs].max() if inputs_limit else targets[0]) * row.examples_per_row
        fitting = int(inputs[window - 1]) * row.examples_per_row
        remedy = f", or data.inputs_length={fitting} or less" if window else ""
        raise ConfigError(
            f"data.targets_length={row.targets_length} is too short for {name}{_examples_text(row)} at "
            f"data.inputs_length={row.inputs_length}: set data.targets_length={needed} or more{remedy}"
        )
    return window


def longest_document(capacities: Sequence[Capacity], row: RowShape, name: str) -> int:
    """The most tokens of a document that fits a row whole, for every length of its prompt.

    Raises ConfigError where not even one token fits, and for row.examples_per_row above 1, which whole documents do not
    use.
    """
    if row.examples_per_row > 1:
        raise ConfigError(
            f"data.examples_per_row={row.examples_per_row} does not go with data.documents='whole', "
            "which puts as many documents into a row as fit: set it to 1"
        )
    for capacity in capacities:
        if capacity.positions <= capacity.special:
            raise ConfigError(
                f"{capacity.field}={capacity.positions} is too short for {name}: set it to {capacity.special + 1} "
                "or more"
            )
    return min(capacity.positions - capacity.special for capacity in capacities)


def _count_leading(fits: np.ndarray) -> int:
    """The number of leading entries that are True."""
    return len(fits) if fits.all() else int(np.argmin(fits))


def _examples_text(row: RowShape) -> str:
    return f" with data.examples_per_row={row.examples_per_row}" if row.examples_per_row > 1 else ""
