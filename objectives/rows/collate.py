"""From raw windows to a batch: corrupts each example with its denoiser, adds the mode token, fills the rows."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np

from contract.batch import Batch
from contract.vocab import Vocab
from contract.windows import BatchSpec, RowPlan, Windows
from objectives.algebra.sequences import Sequences, prepend
from objectives.denoising import Denoising, corrupt_together, views_of
from objectives.objective import Denoiser, InputsTargets, Masked, Objective
from objectives.rows import layout
from objectives.rows.lengths import RowShape

Examples = InputsTargets | Masked | layout.DecoderExamples


@dataclasses.dataclass(frozen=True)
class Collator:
    """A function from windows to a batch, for a table of denoisers and a row shape.

    Attributes:
      denoisers: the table; Windows.denoiser_ids are indices into it.
      batch_spec: the windows that the denoisers need (objectives/rows/window_specs.py).
      row_shape: the positions of a row.
      vocab: the special ids.
      bidirectional_inputs: whether the inputs of a decoder-only row attend to each other.
    """

    denoisers: tuple[Denoiser, ...]
    batch_spec: BatchSpec
    row_shape: RowShape
    vocab: Vocab
    bidirectional_inputs: bool

    def __call__(self, windows: Windows, num_rows: int) -> Batch:
        """Returns a batch of `num_rows` rows, a function of the windows alone."""
        return self.place(self.examples(windows), windows, num_rows)

    def place(self, examples: Examples, windows: Windows, num_rows: int) -> Batch:
        """Returns a batch of `num_rows` rows with the examples of `windows`, which are in the windows' order."""
        layouts: dict[str, Callable[..., Batch]] = {
            "encoder_decoder": layout.encoder_decoder,
            "decoder_only": functools.partial(layout.decoder_only, bidirectional_inputs=self.bidirectional_inputs),
            "encoder_only": layout.encoder_only,
        }
        place = layouts[self.row_shape.architecture]
        return place(examples, windows.row_ids, windows.denoiser_ids, num_rows, self.row_shape, self.vocab)

    def examples(self, windows: Windows) -> Examples:
        """Returns the corrupted examples, in the windows' order, before `place` puts them into rows.

        Those of a mixture of both kinds are DecoderExamples.
        """
        calls = self._calls if windows.variant_ids is None else self._planned_calls
        kinds = calls.kinds_of(windows.denoiser_ids, windows.variant_ids)
        by_kind, counts = np.argsort(kinds, kind="stable"), np.bincount(kinds, minlength=len(calls.denoisers))
        ends = np.cumsum(counts)
        examples, chosen = [], []
        for first, end in calls.groups:
            places = by_kind[ends[first] - counts[first] : ends[end - 1]]
            if places.size:
                chosen.append(places)
                group = zip(calls.denoisers[first:end], counts[first:end].tolist(), strict=True)
                examples.append(self._corrupt([(kind, count) for kind, count in group if count], windows, places))
        if len({type(part) for part in examples}) > 1:
            return _interleave([layout.decoder_examples(part, self.bidirectional_inputs) for part in examples], chosen)
        return _interleave(examples, chosen)

    @functools.cached_property
    def _calls(self) -> "CallGroups":
        return call_groups(self.denoisers, None)

    @functools.cached_property
    def _planned_calls(self) -> "CallGroups":
        return call_groups(self.denoisers, self.batch_spec.plan)

    @property
    def _has_attention_order(self) -> bool:
        # All batches must have the same fields, also batches without an example of such a denoiser.
        return any(denoiser.objective.has_attention_order for denoiser in self.denoisers)

    def _corrupt(
        self, group: Sequence[tuple[Denoiser, int]], windows: Windows, chosen: np.ndarray
    ) -> InputsTargets | Masked:
        """The examples of windows `chosen`, int [n], of the denoisers in `group`, each with the number of its windows.

        First those of the first denoiser, then the second's, and so on.
        """
        lengths, keys = windows.lengths[chosen], windows.keys[chosen]
        tokens = windows.tokens[chosen, : lengths.max()]
        denoiser = group[0][0]
        examples: InputsTargets | Masked
        if len(group) == 1:
            columns = extra_columns_of(denoiser.objective.extra_columns, windows, chosen)
            examples = denoiser.objective.corrupt(tokens, lengths, keys, self.vocab, **columns)
        else:
            objectives = [(cast(Denoising, member.objective), count) for member, count in group]
            examples = corrupt_together(objectives, tokens, lengths, keys, self.vocab)
        begin = 0
        for member, count in group:
            check_lengths(member.objective, examples, lengths, slice(begin, begin := begin + count))
        if isinstance(examples, Masked) and examples.attention_order is None and self._has_attention_order:
            examples = examples._replace(attention_order=np.zeros(examples.targets.shape, np.int32))
        if not denoiser.mode:
            return examples
        modes = [self.vocab.mode(member.mode) for member, _ in group]
        return examples._replace(inputs=prepend(examples.inputs, np.repeat(modes, [count for _, count in group])))


class CallGroups(NamedTuple):
    """Which windows of a batch are corrupted by one call.

    A kind is an objective with a mode: that of a denoiser, or of a variant of one in a row plan. Denoisers of several
    corpora that differ in nothing else are one kind. One call corrupts the windows of a group of kinds.
    """

    denoisers: tuple[Denoiser, ...]  # one of each kind
    groups: tuple[tuple[int, int], ...]  # the first kind of each group, and the one after its last
    of_variants: np.ndarray  # int64 [denoisers, V], the kind of each variant; without a row plan V is 1

    def kinds_of(self, denoiser_ids: np.ndarray, variant_ids: np.ndarray | None) -> np.ndarray:
        """The kinds, int64 [E], of windows of these denoisers and variants, int [E]; None without a row plan."""
        return self.of_variants[denoiser_ids, 0 if variant_ids is None else variant_ids]


def call_groups(denoisers: Sequence[Denoiser], plan: RowPlan | None) -> CallGroups:
    """Returns the groups of a table of denoisers.

    Denoising objectives with the same views are a group (objectives/denoising.py, `corrupt_together`), as are six of
    UL2's seven. Every other kind is a group of its own.
    """
    variants: list[tuple[Denoiser, ...]] = []
    for k, denoiser in enumerate(denoisers):
        count = 0 if plan is None else int(plan.variant_ids[plan.denoiser_ids == k].max()) + 1
        variants.append(denoiser.variants(count) if count else (denoiser,))
    kinds: dict[Hashable, Denoiser] = {}
    groups: dict[Hashable, list[Hashable]] = {}
    for variant in (variant for of_denoiser in variants for variant in of_denoiser):
        kind = variant.objective, variant.mode
        if kind not in kinds:
            kinds[kind] = variant
            views = views_of(variant.objective)
            groups.setdefault((views, bool(variant.mode)) if views else kind, []).append(kind)
    numbers = {kind: number for number, kind in enumerate(kind for group in groups.values() for kind in group)}
    of_variants = np.zeros((len(denoisers), max(map(len, variants))), np.int64)
    for k, of_denoiser in enumerate(variants):
        of_variants[k, : len(of_denoiser)] = [numbers[variant.objective, variant.mode] for variant in of_denoiser]
    ends = np.cumsum([len(group) for group in groups.values()]).tolist()
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return CallGroups(tuple(kinds[kind] for kind in numbers), tuple(bounds), of_variants)


def extra_columns_of(names: Iterable[str], windows: Windows, chosen: np.ndarray) -> dict[str, Sequences | np.ndarray]:
    """Returns the columns `names` (Objective.extra_columns) of examples `chosen`, int [n], as `corrupt` takes them."""
    columns: dict[str, Sequences | np.ndarray] = {
        name: getattr(windows, name)[chosen] for name in names if name != "others"
    }
    if "others" in names:
        assert windows.others_tokens is not None and windows.others_lengths is not None
        columns["others"] = Sequences(windows.others_tokens[chosen], windows.others_lengths[chosen])
    return columns


def _interleave(parts: Sequence[Examples], chosen: Sequence[np.ndarray]):
    """The examples of all parts, which are of one type; example i of part p goes to place chosen[p][i]."""
    if len(parts) == 1 and (np.diff(chosen[0]) > 0).all():
        return parts[0]

    def stacked(arrays):
        shape = sum(map(len, arrays)), *np.max([array.shape[1:] for array in arrays], axis=0)
        stack = np.zeros(shape, arrays[0].dtype)
        for array, places in zip(arrays, chosen, strict=True):
            stack[(places, *map(slice, array.shape[1:]))] = array
        return stack

    def joined(sequences):
        tokens, lengths = zip(*sequences, strict=True)
        return Sequences(stacked(tokens), stacked(lengths))

    fields = {}
    for name in parts[0]._fields:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Sequences):
            fields[name] = joined(values)
        elif values[0] is not None:
            fields[name] = stacked(values)
    return type(parts[0])(**fields)


def check_lengths(
    objective: Objective, examples: InputsTargets | Masked, lengths: np.ndarray, chosen: slice = slice(None)
) -> None:
    """Raises TypeError where examples are longer, or have more fields, than the objective declares.

    The message says which member to define. Such examples would not fit their rows, or the learner would compute the
    logits of some of their targets alone.

    Args:
      objective: the objective that made the examples `chosen`.
      examples: E examples.
      lengths: int [E], of the windows that became the examples.
      chosen: the examples to check.
    """
    if isinstance(examples, Masked):
        _check_fields(objective, examples)
        made = {"both": examples.inputs.lengths, "most_scored": examples.selected.sum(axis=1)}
        what = {"both": "makes {} positions", "most_scored": "selects {} positions"}
    else:
        inputs, targets = examples.inputs.lengths, examples.targets.lengths
        made = {"inputs": inputs, "targets": targets, "both": inputs + targets, "most_scored": targets}
        what = {
            "inputs": "makes {} inputs",
            "targets": "makes {} targets",
            "both": "makes {} inputs and targets",
            "most_scored": "makes {} targets",
        }
    lengths = lengths[chosen]
    bounds = _bounds(objective, 1 << int(lengths.max()).bit_length())
    for name, counts in made.items():
        counts = counts[chosen]
        most = bounds[name][lengths]
        if (counts > most).any():
            e = int((counts - most).argmax())
            member = name if name == "most_scored" else "output_lengths"
            declared = f"{most[e]}" if name == "most_scored" else f"{most[e]} for {name}"
            raise TypeError(
                f"{type(objective).__name__}.corrupt {what[name].format(counts[e])} of a window of {lengths[e]} "
                f"tokens, and {member} returns {declared}: define {member}"
            )


def _check_fields(objective: Objective, examples: Masked) -> None:
    undeclared = {
        "has_attention_order": examples.attention_order is not None and not objective.has_attention_order,
        "num_token_types": examples.token_types is not None and not objective.num_token_types,
    }
    for name, is_undeclared in undeclared.items():
        if is_undeclared:
            raise TypeError(
                f"{type(objective).__name__}.corrupt sets a field of Masked that needs {name}: define {name}"
            )


@functools.lru_cache(maxsize=256)
def _bounds(objective: Objective, count: int) -> dict[str, np.ndarray]:
    """Returns what the objective declares for windows of 0 to count - 1 tokens, int [count] each."""
    raw = np.arange(1, count)
    bounds = objective.output_lengths(raw)._asdict() | {"most_scored": objective.most_scored(raw)}
    return {name: np.concatenate([[0], values]) for name, values in bounds.items()}
