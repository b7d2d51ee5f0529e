"""From raw windows to a batch: corrupts each example with its denoiser, adds the mode token, fills the rows."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np

from contract.batch import Batch
from contract.vocab import Vocab
from contract.windows import BatchSpec, Windows
from objectives.algebra.sequences import Sequences, prepend
from objectives.denoising import Denoising, corrupt_together
from objectives.objective import Denoiser, InputsTargets, Masked
from objectives.rows import layout
from objectives.rows.declared import check_declared
from objectives.rows.kinds import Kinds, make_kinds
from objectives.rows.lengths import RowShape


class _Member(NamedTuple):
    """A denoiser, or a part of one, and the number of its windows in a batch."""

    denoiser: Denoiser
    num_windows: int


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

    def place(self, examples: InputsTargets | Masked, windows: Windows, num_rows: int) -> Batch:
        """Returns a batch of `num_rows` rows with the examples of `windows`, which are in the windows' order."""
        layouts: dict[str, Callable[..., Batch]] = {
            "encoder_decoder": layout.encoder_decoder,
            "decoder_only": functools.partial(layout.decoder_only, bidirectional_inputs=self.bidirectional_inputs),
            "encoder_only": layout.encoder_only,
        }
        place = layouts[self.row_shape.architecture]
        return place(examples, windows.row_ids, windows.denoiser_ids, num_rows, self.row_shape, self.vocab)

    def examples(self, windows: Windows) -> InputsTargets | Masked:
        """Returns the corrupted examples, in the windows' order, before `place` puts them into rows."""
        kinds = self._kinds if windows.parts is None else self._planned_kinds
        kind = kinds.of_windows(windows.denoiser_ids, windows.parts)
        by_kind, counts = np.argsort(kind, kind="stable"), np.bincount(kind, minlength=len(kinds.denoisers))
        ends = np.cumsum(counts)
        examples, chosen = [], []
        for first, end in kinds.groups:
            places = by_kind[ends[first] - counts[first] : ends[end - 1]]
            if places.size:
                chosen.append(places)
                group = zip(kinds.denoisers[first:end], counts[first:end].tolist(), strict=True)
                examples.append(self._corrupt([_Member(*member) for member in group if member[1]], windows, places))
        return _interleave(examples, chosen)

    @functools.cached_property
    def _kinds(self) -> Kinds:
        return make_kinds(self.denoisers, None)

    @functools.cached_property
    def _planned_kinds(self) -> Kinds:
        return make_kinds(self.denoisers, self.batch_spec.plan)

    @property
    def _has_attention_order(self) -> bool:
        # All batches must have the same fields, also batches without an example of such a denoiser.
        return any(denoiser.objective.has_attention_order for denoiser in self.denoisers)

    def _corrupt(self, group: Sequence[_Member], windows: Windows, chosen: np.ndarray) -> InputsTargets | Masked:
        """The examples of windows `chosen`, int [n]: first those of the group's first member, then the second's, ..."""
        lengths, keys = windows.lengths[chosen], windows.keys[chosen]
        tokens = windows.tokens[chosen, : lengths.max()]
        denoiser = group[0].denoiser
        examples: InputsTargets | Masked
        if len(group) == 1:
            columns = extra_columns_of(denoiser.objective.extra_columns, windows, chosen)
            examples = denoiser.objective.corrupt(tokens, lengths, keys, self.vocab, **columns)
        else:
            objectives = [(cast(Denoising, member.objective), count) for member, count in group]
            examples = corrupt_together(objectives, tokens, lengths, keys, self.vocab)
        begin = 0
        for member, count in group:
            check_declared(member.objective, examples, lengths, slice(begin, begin := begin + count))
        if isinstance(examples, Masked) and examples.attention_order is None and self._has_attention_order:
            examples = examples._replace(attention_order=np.zeros(examples.targets.shape, np.int32))
        if not denoiser.mode:
            return examples
        modes = [self.vocab.mode(member.mode) for member, _ in group]
        return examples._replace(inputs=prepend(examples.inputs, np.repeat(modes, [count for _, count in group])))


def extra_columns_of(names: Iterable[str], windows: Windows, chosen: np.ndarray) -> dict[str, Sequences | np.ndarray]:
    """Returns the columns `names` (Objective.extra_columns) of examples `chosen`, int [n], as `corrupt` takes them."""
    columns: dict[str, Sequences | np.ndarray] = {
        name: getattr(windows, name)[chosen] for name in names if name != "others"
    }
    if "others" in names:
        assert windows.others_tokens is not None and windows.others_lengths is not None
        columns["others"] = Sequences(windows.others_tokens[chosen], windows.others_lengths[chosen])
    return columns


def _interleave(parts: Sequence[InputsTargets | Masked], chosen: Sequence[np.ndarray]):
    """The examples of all parts, InputsTargets or Masked; example i of part p goes to place chosen[p][i]."""
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
