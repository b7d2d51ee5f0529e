"""From raw windows to a batch: corrupts each example with its denoiser, adds the mode token, fills the rows."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any, cast

import numpy as np

from contract import rng
from contract.batch import Batch
from contract.vocab import Vocab
from contract.windows import BatchSpec, Windows
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences, prepend
from objectives.denoising import Denoising, corrupt_together, views_of
from objectives.objective import Denoiser, InputsTargets, Masked, Objective, RowShape
from objectives.rows import layout

Examples = InputsTargets | Masked | layout.DecoderExamples
# What an objective says of its examples -> the fields of the examples that it then sets.
_FIELDS = {
    "has_denominators": ("denominators",),
    "has_attention_order": ("attention_order",),
    "has_blocks": ("blocks",),
    "has_places": ("positions", "target_positions"),
}


@dataclasses.dataclass(frozen=True)
class Collator:
    """A function from windows to a batch, for a table of denoisers and a row shape.

    Attributes:
      denoisers: the table; Windows.denoiser_ids are indices into it.
      batch_spec: the windows that the denoisers need (objectives/rows/window_specs.py).
      row_shape: the positions of a row.
      vocab: the special ids.
      bidirectional_inputs: whether the inputs of a decoder-only row attend to each other.
      annealing_steps: the training batches in which a decoder's attention to later tokens opens; 0: it is open.
      seed: any int, of the choice of the edges that are open.
    """

    denoisers: tuple[Denoiser, ...]
    batch_spec: BatchSpec
    row_shape: RowShape
    vocab: Vocab
    bidirectional_inputs: bool
    annealing_steps: int = 0
    seed: int = 0

    def __call__(self, windows: Windows, num_rows: int) -> Batch:
        """Returns a training batch of `num_rows` rows, a function of the windows alone.

        Windows without row_steps have the final objective of a schedule, and the attention of the first batch.
        """
        batch = self.place(self.examples(windows), windows, num_rows)
        if self.annealing_steps or any(denoiser.schedule for denoiser in self.denoisers):
            batch |= self._of_steps(windows.row_steps, num_rows)
        return batch

    def _of_steps(self, steps: np.ndarray | None, num_rows: int) -> Batch:
        """The batch's fields that depend on the training batches `steps`, int64 [B], of its rows alone; None: of none.

        The weight of what the learner adds has one schedule, in all rows of a mixture that name the learner.
        """
        fields = _future_edges(steps, num_rows, self.annealing_steps, self.seed) if self.annealing_steps else {}
        schedules = [denoiser.schedule for denoiser in self.denoisers if denoiser.schedule]
        schedule = next((one for one in schedules if one.final.auxiliary_weight_field in one.fields), None)
        if schedule is None:
            return fields
        of_rows = np.full(num_rows, schedule.end_step) if steps is None else steps
        distinct, place = np.unique(of_rows, return_inverse=True)
        weights = np.array(
            [getattr(schedule.at(step), schedule.final.auxiliary_weight_field) for step in distinct.tolist()],
            np.float32,
        )
        return fields | {"auxiliary_loss_weight": weights[place]}

    def place(self, examples: Examples, windows: Windows, num_rows: int) -> Batch:
        """Returns a batch of `num_rows` rows with the examples of `windows`, which are in the windows' order."""
        layouts: dict[str, Callable[..., Batch]] = {
            "encoder_decoder": layout.encoder_decoder,
            "decoder_only": functools.partial(layout.decoder_only, bidirectional_inputs=self.bidirectional_inputs),
            "encoder_only": layout.encoder_only,
        }
        where = windows.row_ids, windows.denoiser_ids, num_rows, self.row_shape, self.vocab
        batch = layouts[self.row_shape.architecture](examples, *where)
        return self._weighted(batch) if any(denoiser.loss_weight != 1 for denoiser in self.denoisers) else batch

    def _weighted(self, batch: Batch) -> Batch:
        """The batch with the loss weights of each example times that of its denoiser."""
        factors = np.array([denoiser.loss_weight for denoiser in self.denoisers], np.float32)[batch["example_source"]]
        weights = [name for name in batch if name.endswith(("_loss_weights", "_loss_denominators"))]
        return batch | {name: batch[name] * factors for name in weights}

    def examples(self, windows: Windows) -> Examples:
        """Returns the corrupted examples, in the windows' order, before `place` puts them into rows.

        Windows of equal objectives are corrupted by one call, and so are those of denoising objectives with equal views
        (objectives/denoising.py), as are six of UL2's seven: few calls with many windows take less time.
        Examples of a mixture of both kinds are DecoderExamples.
        """
        groups: dict[Hashable, list[tuple[Denoiser, np.ndarray]]] = {}
        for denoiser, places in self._places_by_denoiser(windows):
            group = views_of(denoiser.objective) or denoiser.objective, bool(denoiser.mode)
            groups.setdefault(group, []).append((denoiser, places))
        parts, chosen = [], []
        for members in groups.values():
            chosen.append(np.concatenate([places for _, places in members]))
            parts.append(self._corrupt(members, windows, chosen[-1]))
        # All batches must have the same fields, also those without an example of a denoiser that sets some of them.
        objectives = [denoiser.objective for denoiser in self.denoisers]
        flags = [flag for flag in _FIELDS if any(getattr(objective, flag) for objective in objectives)]
        in_all = {name for flag in flags for name in _FIELDS[flag]}
        kinds, examples = {type(part) for part in parts}, cast(list[Examples], parts)
        if kinds == {InputsTargets} and (not in_all or all(objective.has_places for objective in objectives)):
            of_targets = cast(list[InputsTargets], parts)
            if any(part.positions is not None or part.weights is not None for part in of_targets):
                of_targets = layout.with_optional(of_targets, self.row_shape.architecture)
            return _interleave(of_targets, chosen)
        if InputsTargets in kinds or "has_places" in flags:
            examples = [layout.decoder_examples(part, self.bidirectional_inputs, self.vocab) for part in parts]
        in_some = {name for part in examples for name in part._fields if getattr(part, name) is not None}
        return _interleave([_with_fields(part, in_all | in_some) for part in examples], chosen)

    def _places_by_denoiser(self, windows: Windows) -> Iterator[tuple[Denoiser, np.ndarray]]:
        """Yields each denoiser that has windows, and their places, int [n].

        A denoiser comes once for each step of its schedule and for each variant of a row plan.
        """
        plan, variant_ids = self.batch_spec.plan, windows.variant_ids
        for k, denoiser in enumerate(self.denoisers):
            places = np.flatnonzero(windows.denoiser_ids == k)
            members = [(denoiser, places)]
            if denoiser.schedule and windows.row_steps is not None:
                steps = windows.row_steps[windows.row_ids[places]]
                members = [(denoiser.at(step), places[steps == step]) for step in np.unique(steps).tolist()]
            if plan is not None and variant_ids is not None:
                members = [
                    (variant, of_member[variant_ids[of_member] == number])
                    for member, of_member in members
                    for number, variant in enumerate(member.variants(plan.num_variants(k)))
                ]
            yield from ((member, of_member) for member, of_member in members if of_member.size)

    def _corrupt(
        self, group: Sequence[tuple[Denoiser, np.ndarray]], windows: Windows, chosen: np.ndarray
    ) -> InputsTargets | Masked:
        """The examples of windows `chosen`, int [n]: those of the first denoiser of the group, then the second's."""
        lengths, keys, vocab = windows.lengths[chosen], windows.keys[chosen], self.vocab
        tokens = windows.tokens[chosen, : lengths.max()]
        denoiser, begin, members = group[0][0], 0, []
        for member, places in group:
            members.append((member.objective, slice(begin, begin := begin + len(places))))
        examples: InputsTargets | Masked
        if views_of(denoiser.objective):
            examples = corrupt_together(cast(list[tuple[Denoising, slice]], members), tokens, lengths, keys, vocab)
        else:
            columns = extra_columns_of(denoiser.objective.extra_columns, windows, chosen)
            examples = denoiser.objective.corrupt(tokens, lengths, keys, vocab, **columns)
        for objective, of_objective in members:
            check_lengths(objective, examples, lengths, of_objective)
        if not denoiser.mode:
            return examples
        modes = np.concatenate([np.full(len(places), vocab.mode(member.mode)) for member, places in group])
        if isinstance(examples, InputsTargets) and examples.positions is not None:
            examples = examples._replace(positions=examples.positions + 1)
        return examples._replace(inputs=prepend(examples.inputs, modes))


def _future_edges(steps: np.ndarray | None, num_rows: int, annealing_steps: int, seed: int) -> Batch:
    """The batch's fields of the annealing of attention, for rows of the training batches `steps`, int64 [B]; None: 0.

    Of batch n the share min(n / annealing_steps, 1) of the edges to later tokens is open (DiffuLLaMA, Gong et al. 2025,
    arXiv 2410.17891; its code has n + 1 in place of n). The key is the same for all rows of a batch.
    """
    steps = np.zeros(num_rows, np.int64) if steps is None else steps
    keys = rng.mix64(np.uint64(rng.seed_bits(seed, "future edges")) + rng.GOLDEN * steps.astype(np.uint64))
    return {
        "decoder_annealing_share": np.minimum(steps / annealing_steps, 1).astype(np.float32),
        "decoder_annealing_key": (keys >> np.uint64(33)).astype(np.int32),
    }


def extra_columns_of(names: Iterable[str], windows: Windows, chosen: np.ndarray) -> dict[str, Sequences | np.ndarray]:
    """Returns the columns `names` (Objective.extra_columns) of examples `chosen`, int [n], as `corrupt` takes them."""
    present = [name for name in names if name != "others" and getattr(windows, name) is not None]
    columns: dict[str, Sequences | np.ndarray] = {name: getattr(windows, name)[chosen] for name in present}
    if "others" in names:
        assert windows.others_tokens is not None and windows.others_lengths is not None
        columns["others"] = Sequences(windows.others_tokens[chosen], windows.others_lengths[chosen])
    return columns


def _with_fields(part: Examples, names: Set[str]) -> Examples:
    """The examples with arrays in the fields `names`: a field that is None becomes an array of its default."""
    assert not isinstance(part, InputsTargets)  # `examples` has made them DecoderExamples
    missing = {name for name in names & set(part._fields) if getattr(part, name) is None}
    if not missing:
        return part
    weights = cast(Masked, part).selected.astype(np.float32) if part.weights is None else part.weights
    zeros, places = np.zeros(part.targets.shape, np.int32), np.arange(part.targets.shape[1], dtype=np.int32)
    positions = np.broadcast_to(places, zeros.shape) if part.positions is None else part.positions
    defaults: dict[str, Any] = {
        "weights": weights,
        "denominators": weights,
        "shifted": np.zeros(len(zeros), bool),
        "causal": np.zeros(len(zeros), bool),
        "attention_order": zeros,
        "blocks": zeros,
        "positions": positions,
        "target_positions": positions,
    }
    return part._replace(**{name: defaults[name] for name in missing & defaults.keys()})


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


def check_lengths(objective: Objective, examples: InputsTargets | Masked, lengths: np.ndarray, chosen: slice) -> None:
    """Raises TypeError where examples are longer than the objective declares, with the member to define.

    Such examples would not fit their rows, or the learner would compute the logits of some of their targets alone.

    Args:
      objective: the objective that made the examples `chosen`.
      examples: E examples.
      lengths: int [E], of the windows that became the examples.
      chosen: the examples to check.
    """
    inputs = examples.inputs.lengths
    if isinstance(examples, Masked):
        made = {"inputs": inputs, "scored positions": examples.selected.sum(axis=1)}
    else:
        targets, weights = examples.targets.lengths, examples.weights
        made = {"inputs": inputs, "targets": targets, "inputs and targets": inputs + targets}
        made["scored positions"] = targets if weights is None else _num_scored(objective, weights, targets)
    lengths = lengths[chosen]
    declared = _declared_lengths(objective, 1 << int(lengths.max()).bit_length())
    for name, counts in made.items():
        most, counts = declared[name][lengths], counts[chosen]
        if (counts > most).any():
            e = int((counts - most).argmax())
            member = "most_scored" if name == "scored positions" else "output_lengths"
            raise TypeError(
                f"{type(objective).__name__}.corrupt makes {counts[e]} {name} of a window of {lengths[e]} tokens, and "
                f"{member} returns {most[e]}: define {member}"
            )


def _num_scored(objective: Objective, weights: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int [E]: the targets with a weight, float32 [E, W], of which lengths[e] are of example e.

    Raises TypeError for weights below 0, and for others than 1 where bits per byte would be computed from them.
    """
    valid = valid_positions(lengths, weights.shape[1])
    if (weights[valid] < 0).any():
        raise TypeError(f"{type(objective).__name__}.corrupt returns weights below 0: 0 is a target that is not scored")
    if objective.byte_metric and (weights[valid] != 1).any():
        raise TypeError(
            f"{type(objective).__name__}.byte_metric={objective.byte_metric!r}, and its targets have weights other "
            "than 1, so its loss is not that of a text: define byte_metric = ''"
        )
    return ((weights > 0) & valid).sum(axis=1)


@functools.lru_cache(maxsize=256)
def _declared_lengths(objective: Objective, count: int) -> dict[str, np.ndarray]:
    """Returns what the objective declares for windows of 0 to count - 1 tokens, int [count] each."""
    raw = np.arange(1, count)
    inputs, targets, both = objective.output_lengths(raw)
    bounds = {"inputs": inputs, "targets": targets, "inputs and targets": both}
    bounds["scored positions"] = objective.most_scored(raw)
    return {name: np.concatenate([[0], values]) for name, values in bounds.items()}
