"""The windows and the logits that a table of denoisers needs for rows of a given shape, before any text is read."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import BatchSpec, Capacity, DocumentHandling, Ramp, WindowSpec
from objectives.objective import Denoiser
from objectives.rows.lengths import RowShape, longest_document, longest_window
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
        warnings += denoiser.objective.check(denoiser.field)
        _check_supported(denoiser, row_shape, of_denoiser)
        if denoiser.mode:
            vocab.mode(denoiser.mode)
    if packing == "planned":
        for of_denoiser in dict.fromkeys(handling):
            _check_plannable(row_shape, of_denoiser, ramp, mix_by)
        planned = plan_cycle(denoisers, row_shape, mix_by=mix_by)
        plan = planned.rows
        warnings += warnings_about(planned, denoisers, row_shape, mix_by=mix_by)

    capacities = [
        _capacities(denoiser, row_shape) if of_denoiser == "whole" else ()
        for denoiser, of_denoiser in zip(denoisers, handling, strict=True)
    ]
    raw_lengths = []
    for k, (denoiser, of_row) in enumerate(zip(denoisers, capacities, strict=True)):
        if plan:
            raw_lengths.append(int(plan.lengths_of(k).max()))
        elif of_row:
            raw_lengths.append(longest_document(of_row, row_shape, denoiser.name))
        else:
            raw_lengths.append(longest_window(denoiser.output_lengths, row_shape, denoiser.name))
        denoiser.objective.check_window(raw_lengths[k], denoiser.field)
    _check_sentinels(denoisers, raw_lengths, row_shape, vocab)

    specs = [
        WindowSpec(
            name=denoiser.name,
            weight=denoiser.weight,
            raw_length=raw_lengths[k],
            documents=handling[k],
            eos=denoiser.objective.eos_in_windows,
            extra_columns=denoiser.objective.extra_columns,
            capacities=capacities[k],
            classes=denoiser.objective.classes,
            on_unusable=on_unusable,
            corpus=denoiser.corpus,
        )
        for k, denoiser in enumerate(denoisers)
    ]
    windows = _with_shares(specs, [denoiser.final_weight for denoiser in denoisers], ramp)
    if plan:
        counts = np.bincount(plan.denoiser_ids.ravel()) / plan.denoiser_ids.size
        windows = tuple(dataclasses.replace(spec, weight=float(n)) for spec, n in zip(windows, counts, strict=True))
        mix_by = "example"
    return BatchSpec(windows, row_shape.examples_per_row, vocab.pad, mix_by, plan), list(dict.fromkeys(warnings))


def most_scored(denoisers: Sequence[Denoiser], spec: BatchSpec, row_shape: RowShape) -> int:
    """Returns an upper bound of the positions with a loss weight in a row: for every text and every random draw.

    Where documents determine how many examples a row has ("pack", "whole"), the bound is the length of the row.

    Args:
      denoisers: the table.
      spec: the windows of the rows.
      row_shape: the positions of the rows.
    """
    length = row_shape.targets_length if row_shape.architecture == "encoder_decoder" else row_shape.inputs_length
    if any(window.documents in ("pack", "whole") for window in spec.windows):
        return length
    if spec.plan is None:
        bounds = [
            _most_scored_up_to(denoiser, w.raw_length)[-1] for denoiser, w in zip(denoisers, spec.windows, strict=True)
        ]
        return min(length, spec.examples_per_row * int(max(bounds)))
    bounds_of_examples = np.zeros(spec.plan.raw_lengths.shape, np.int64)
    for k, denoiser in enumerate(denoisers):
        is_denoiser = spec.plan.denoiser_ids == k
        for k_variant, variant in enumerate(denoiser.variants(int(spec.plan.variant_ids[is_denoiser].max()) + 1)):
            chosen = is_denoiser & (spec.plan.variant_ids == k_variant)
            of_lengths = _most_scored_up_to(variant, int(spec.plan.raw_lengths.max()))
            bounds_of_examples[chosen] = of_lengths[spec.plan.raw_lengths[chosen] - 1]
    return min(length, int(bounds_of_examples.sum(axis=1).max()))


def _most_scored_up_to(denoiser: Denoiser, longest: int) -> np.ndarray:
    """int64 [longest]: the bound of the examples of windows of 1, ..., longest tokens and of shorter windows."""
    return np.maximum.accumulate(denoiser.objective.most_scored(np.arange(1, longest + 1)))


def _capacities(denoiser: Denoiser, row_shape: RowShape) -> tuple[Capacity, ...]:
    """The objective's capacities with the mode token."""
    first, *others = denoiser.objective.capacities(row_shape)
    return first._replace(special=first.special + bool(denoiser.mode)), *others


def _with_shares(
    specs: Sequence[WindowSpec], final_weights: Sequence[float], ramp: tuple[int, int] | None
) -> tuple[WindowSpec, ...]:
    """The specs with shares as weights: the initial weights sum to 1, and the final weights have the same unit."""
    first, last = (np.asarray(w) / sum(w) for w in ([spec.weight for spec in specs], final_weights))
    return tuple(
        dataclasses.replace(spec, weight=weight, ramp=Ramp(*ramp, final) if ramp else None)
        for spec, weight, final in zip(specs, first.tolist(), last.tolist(), strict=True)
    )


def _check_supported(denoiser: Denoiser, row_shape: RowShape, documents: str) -> None:
    objective, name = denoiser.objective, type(denoiser.objective).__name__
    _ = objective.prompting  # raises for an objective that does not define how it is prompted
    if "labels" in objective.extra_columns and not objective.classes:
        raise TypeError(f"{name}.extra_columns has 'labels': define classes, the names of the classes")
    if row_shape.architecture not in objective.architectures:
        raise ConfigError(
            f"model.architecture={row_shape.architecture!r} does not go with {denoiser.field} ({name}): "
            f"use {' or '.join(repr(a) for a in sorted(objective.architectures))}"
        )
    if documents not in objective.documents:
        raise ConfigError(
            f"{denoiser.documents_field}={documents!r} does not go with {denoiser.field} ({name}): "
            f"use {' or '.join(repr(d) for d in objective.documents)}"
        )
    if objective.one_example_per_row and row_shape.examples_per_row > 1:
        raise ConfigError(
            f"data.examples_per_row={row_shape.examples_per_row} does not go with {denoiser.field} ({name}), "
            "which learns one thing from each row: set it to 1"
        )
    # With "pack" each document's piece is a segment, and each segment reads one EOS in the encoder.
    segments = row_shape.targets_length // 2 + 1
    if documents == "pack" and row_shape.architecture == "encoder_decoder" and row_shape.inputs_length < segments:
        raise ConfigError(
            f"data.inputs_length={row_shape.inputs_length} is too short for data.documents='pack': a row of "
            f"{row_shape.targets_length} targets can hold {segments} documents; set data.inputs_length={segments} "
            "or more"
        )


def _check_plannable(row_shape: RowShape, documents: str, ramp: tuple[int, int] | None, mix_by: str) -> None:
    if row_shape.examples_per_row == 1:
        raise ConfigError(
            "data.packing='planned' divides rows among several examples, and data.examples_per_row=1: "
            "set it to 2 or more"
        )
    if documents not in ("join", "split"):
        raise ConfigError(
            f"data.packing='planned' plans windows, and with data.documents={documents!r} documents determine them: "
            "use 'join' or 'split', or data.packing='equal'"
        )
    if documents == "split" and mix_by == "token":
        raise ConfigError(
            "objective.mix_by='token' and data.packing='planned' plan shares of raw tokens from the lengths of full "
            "windows, and with data.documents='split' windows are shorter: set data.documents='join', "
            "data.packing='equal' or objective.mix_by='example'"
        )
    if ramp:
        raise ConfigError(
            "data.packing='planned' has one plan for the whole run, and the mixture's weights change during the run: "
            "set data.packing='equal', or objective.schedule='constant'"
        )


def _check_sentinels(
    denoisers: Sequence[Denoiser], raw_lengths: Sequence[int], row_shape: RowShape, vocab: Vocab
) -> None:
    """Raises ConfigError, with what suffices for all denoisers, where the vocabulary has too few sentinels."""
    needed = [
        denoiser.objective.num_sentinels(np.arange(1, raw_length + 1))
        for denoiser, raw_length in zip(denoisers, raw_lengths, strict=True)
    ]
    short = [k for k, counts in enumerate(needed) if counts.max() > vocab.num_sentinels]
    if not short:
        return
    most = max(short, key=lambda k: int(needed[k].max()))
    fitting = []  # for each denoiser, the inputs of its longest window that has enough sentinels
    for k in short:
        fits = int(np.argmax(needed[k] > vocab.num_sentinels))  # raw lengths 1..fits have enough sentinels
        lengths = denoisers[k].objective.output_lengths(np.asarray([fits]))
        positions = lengths.inputs if row_shape.architecture == "encoder_decoder" else lengths.both
        fitting.append((int(positions[0]) + bool(denoisers[k].mode)) * row_shape.examples_per_row if fits else 0)
    remedy = f", or data.inputs_length={min(fitting)} or less" if all(fitting) else ""
    raise ConfigError(
        f"data.num_sentinels={vocab.num_sentinels} is too few for {denoisers[most].name}: its windows of "
        f"{raw_lengths[most]} tokens need {needed[most].max()}; set data.num_sentinels={needed[most].max()} or "
        f"more{remedy}"
    )
