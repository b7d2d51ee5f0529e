"""The whole way from raw windows to a batch: corrupt with each example's denoiser, mark its mode, place it in rows."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import Capacity, Ramp, RowPlan, Windows, WindowSpec
from objectives.algebra import sequences
from objectives.algebra.sequences import Sequences
from objectives.objective import Denoiser, InputsTargets, Masked
from objectives.rows import layout
from objectives.rows.filling import advice, plan_cycle
from objectives.rows.lengths import RowShape, longest_window, whole_document


@dataclasses.dataclass(frozen=True)
class Collator:
    """Windows -> batch for one table of denoisers and one row shape. `make_collator` checks that they go together.

    `specs` is what it asks of the data: the raw length that fills a row, for each denoiser; `plan`, where rows are
    planned, which windows stand in a row, and how long each is.
    """

    denoisers: tuple[Denoiser, ...]
    specs: tuple[WindowSpec, ...]
    shape: RowShape
    vocab: Vocab
    bidirectional_inputs: bool
    plan: RowPlan | None = None

    def __call__(self, windows: Windows, num_rows: int) -> Batch:
        """One batch of `num_rows` rows. The same windows and keys give the same batch."""
        return self.place(self.examples(windows), windows, num_rows)

    def place(self, examples: InputsTargets | Masked, windows: Windows, num_rows: int) -> Batch:
        """The examples of `windows`, in their order, in `num_rows` rows."""
        place = {
            "encoder_decoder": layout.encoder_decoder,
            "decoder_only": functools.partial(layout.decoder_only, bidirectional_inputs=self.bidirectional_inputs),
            "encoder_only": layout.encoder_only,
        }[self.shape.architecture]
        return place(examples, windows.row_ids, windows.denoiser_ids, num_rows, self.shape, self.vocab)

    def examples(self, windows: Windows) -> InputsTargets | Masked:
        """The corrupted examples, in the windows' order, before they are placed."""
        examples, chosen = [], []
        for index, denoiser in enumerate(self.denoisers):
            one_part = (denoiser,) if windows.parts is None else self._parts[index]
            for part, one in enumerate(one_part):
                is_here = windows.denoiser_ids == index
                if len(one_part) > 1:
                    is_here &= windows.parts == part
                if is_here.any():
                    chosen.append(np.flatnonzero(is_here))
                    examples.append(self._corrupt(one, windows, chosen[-1]))
        return _interleave(examples, chosen)

    def window(self, index: int) -> str:
        """How many raw tokens a denoiser's windows have, for people: "567", or "541-617"."""
        lengths = [self.specs[index].raw_length] if self.plan is None else self.plan.lengths_of(index)
        return "-".join(map(str, dict.fromkeys([min(lengths), max(lengths)])))

    @functools.cached_property
    def _parts(self) -> tuple[tuple[Denoiser, ...], ...]:
        """The denoisers in the parts that the plan has them in."""
        counts = [int(self.plan.parts[self.plan.denoiser_ids == k].max()) + 1 for k in range(len(self.denoisers))]
        return tuple(denoiser.parts(count) for denoiser, count in zip(self.denoisers, counts, strict=True))

    @property
    def _has_attention_order(self) -> bool:
        # Whichever denoisers a batch happens to have, it has the same fields.
        return any(denoiser.objective.has_attention_order for denoiser in self.denoisers)

    def _corrupt(self, denoiser: Denoiser, windows: Windows, chosen: np.ndarray) -> InputsTargets | Masked:
        lengths = windows.lengths[chosen]
        tokens = windows.tokens[chosen, : lengths.max()]
        more = extra_columns_of(denoiser.objective.extra_columns, windows, chosen)
        examples = denoiser.objective.corrupt(tokens, lengths, windows.keys[chosen], self.vocab, **more)
        if isinstance(examples, Masked) and examples.attention_order is None and self._has_attention_order:
            examples = examples._replace(attention_order=np.zeros(examples.targets.shape, np.int32))
        if not denoiser.mode:
            return examples
        return examples._replace(inputs=sequences.prepend(examples.inputs, self.vocab.mode(denoiser.mode)))


def extra_columns_of(
    extra_columns: Iterable[str], windows: Windows, chosen: np.ndarray
) -> dict[str, Sequences | np.ndarray]:
    """The keywords that a corruption which `reads` more than tokens gets for the examples `chosen`, int [n]."""
    more = {name: getattr(windows, name)[chosen] for name in extra_columns if name != "others"}
    if "others" in extra_columns:
        more["others"] = Sequences(windows.others_tokens[chosen], windows.others_lengths[chosen])
    return more


def _interleave(parts: Sequence[InputsTargets] | Sequence[Masked], chosen: Sequence[np.ndarray]):
    """The examples of all parts, InputsTargets or Masked, example i of part p in place chosen[p][i]."""
    if len(parts) == 1:
        return parts[0]  # a single denoiser's examples never left their order

    def stacked(arrays):
        shape = sum(map(len, arrays)), *np.max([array.shape[1:] for array in arrays], axis=0)
        out = np.zeros(shape, arrays[0].dtype)
        for array, places in zip(arrays, chosen, strict=True):
            out[(places, *map(slice, array.shape[1:]))] = array
        return out

    def joined(sequences):
        return Sequences(stacked([one.tokens for one in sequences]), stacked([one.lengths for one in sequences]))

    fields = {}
    for name in parts[0]._fields:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Sequences):
            fields[name] = joined(values)
        elif values[0] is not None:
            fields[name] = stacked(values)
    return type(parts[0])(**fields)


def make_collator(
    denoisers: Sequence[Denoiser],
    shape: RowShape,
    vocab: Vocab,
    *,
    documents: str,
    bidirectional_inputs: bool,
    packing: str = "equal",
    mix_by: str = "example",
    ramp: tuple[int, int] | None = None,
    on_unusable: str = "error",
) -> tuple[Collator, list[str]]:
    """The collator and the warnings to show.

    documents, on_unusable: as in WindowSpec.
    packing: how the examples of a row share it, in "equal" parts or as "planned" by objectives/rows/filling.py.
    mix_by: what the weights share out, examples or raw tokens: "example" or "token".
    ramp: the examples of the run between which the shares go from the weights to the final weights, if they differ.

    Raises ConfigError for whatever could not work, before any data is read: architectures, document handling,
    densities, lengths that cannot fit, too few sentinels, unknown mode tokens.
    """
    warnings, specs, plan = [], [], None
    for denoiser in denoisers:
        warnings += denoiser.objective.check(denoiser.field)
        _check_kind(denoiser, shape, documents)
        if denoiser.mode:
            vocab.mode(denoiser.mode)
    if packing == "planned":
        _check_plannable(shape, documents, ramp)
        planned = plan_cycle(denoisers, shape, mix_by=mix_by)
        plan = planned.rows
        warnings += advice(planned, denoisers, shape, mix_by=mix_by)

    for k, denoiser in enumerate(denoisers):
        capacities = _capacities(denoiser, shape) if documents == "whole" else ()
        if capacities:
            raw_length = whole_document(capacities, shape, denoiser.name)
        elif plan:
            raw_length = int(plan.lengths_of(k).max())
        else:
            raw_length = longest_window(denoiser.output_lengths, shape, denoiser.name)
        _check_sentinels(denoiser, raw_length, shape, vocab)
        kind = denoiser.objective
        specs.append(
            WindowSpec(
                name=denoiser.name,
                weight=denoiser.weight,
                raw_length=raw_length,
                documents=documents,
                eos=kind.eos_in_windows,
                extra_columns=kind.extra_columns,
                capacities=capacities,
                classes=kind.classes if "labels" in kind.extra_columns else (),
                on_unusable=on_unusable,
            )
        )
    specs = _with_shares(specs, [denoiser.final_weight for denoiser in denoisers], mix_by, ramp)
    if plan:
        counts = np.bincount(plan.denoiser_ids.ravel()) / plan.denoiser_ids.size
        specs = tuple(dataclasses.replace(spec, weight=float(n)) for spec, n in zip(specs, counts, strict=True))
    return Collator(tuple(denoisers), specs, shape, vocab, bidirectional_inputs, plan), warnings


def _capacities(denoiser: Denoiser, shape: RowShape) -> tuple[Capacity, ...]:
    first, *others = denoiser.objective.capacities(shape)
    return first._replace(added=first.added + bool(denoiser.mode)), *others


def _with_shares(
    specs: Sequence[WindowSpec], final_weights: Sequence[float], mix_by: str, ramp: tuple[int, int] | None
) -> tuple[WindowSpec, ...]:
    """The specs with shares of the examples for weights, the first ones adding to 1, the last ones in their unit."""
    tokens = np.asarray([spec.raw_length if mix_by == "token" else 1 for spec in specs])
    first, last = (np.asarray(w) / sum(w) / tokens for w in ([spec.weight for spec in specs], final_weights))
    first, last = (first / first.sum()).tolist(), (last / first.sum()).tolist()
    return tuple(
        dataclasses.replace(spec, weight=weight, ramp=Ramp(*ramp, final) if ramp else None)
        for spec, weight, final in zip(specs, first, last, strict=True)
    )


def _check_kind(denoiser: Denoiser, shape: RowShape, documents: str) -> None:
    kind, name = denoiser.objective, type(denoiser.objective).__name__
    if shape.architecture not in kind.architectures:
        raise ConfigError(
            f"model.architecture={shape.architecture!r} does not go with {denoiser.field} ({name}): "
            f"use {' or '.join(repr(a) for a in sorted(kind.architectures))}"
        )
    if documents not in kind.documents:
        raise ConfigError(
            f"data.documents={documents!r} does not go with {denoiser.field} ({name}): "
            f"use {' or '.join(repr(d) for d in kind.documents)}"
        )
    if kind.one_example_per_row and shape.examples_per_row > 1:
        raise ConfigError(
            f"data.examples_per_row={shape.examples_per_row} does not go with {denoiser.field} ({name}), "
            "which learns one thing of each row: set it to 1"
        )
    # Windows that are cut into documents give one segment each, and each reads one EOS of the encoder's.
    segments = shape.targets_length // 2 + 1
    if documents == "pack" and shape.architecture == "encoder_decoder" and shape.inputs_length < segments:
        raise ConfigError(
            f"data.inputs_length={shape.inputs_length} is too short for data.documents='pack': a row of "
            f"{shape.targets_length} targets can hold {segments} documents; set data.inputs_length={segments} or more"
        )


def _check_plannable(shape: RowShape, documents: str, ramp: tuple[int, int] | None) -> None:
    if shape.examples_per_row == 1:
        raise ConfigError(
            "data.packing='planned' shares out rows among several examples, and data.examples_per_row=1: "
            "set it to 2 or more"
        )
    if documents not in ("join", "split"):
        raise ConfigError(
            f"data.packing='planned' plans windows, and data.documents={documents!r} lets documents decide: "
            "use 'join' or 'split', or data.packing='equal'"
        )
    if ramp:
        raise ConfigError(
            "data.packing='planned' has one plan for the whole run, and the mixture's weights change in its course: "
            "set data.packing='equal', or objective.schedule='constant'"
        )


def _check_sentinels(denoiser: Denoiser, raw_length: int, shape: RowShape, vocab: Vocab) -> None:
    needed = denoiser.objective.num_sentinels(np.arange(1, raw_length + 1))
    if needed.max() > vocab.num_sentinels:
        fits = int(np.argmax(needed > vocab.num_sentinels))  # raw lengths 1..fits need no more than there are
        remedy = ""
        if fits:
            lengths = denoiser.objective.output_lengths(np.asarray([fits]))
            taken = lengths.inputs if shape.architecture == "encoder_decoder" else lengths.both
            instead = (int(taken[0]) + bool(denoiser.mode)) * shape.examples_per_row
            remedy = f", or data.inputs_length={instead} or less"
        raise ConfigError(
            f"data.num_sentinels={vocab.num_sentinels} is too few for {denoiser.name}: its windows of {raw_length} "
            f"tokens need {needed.max()}; set data.num_sentinels={needed.max()} or more{remedy}"
        )
