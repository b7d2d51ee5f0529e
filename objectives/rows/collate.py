"""From raw windows to a batch: corrupts each example with its denoiser, adds the mode token, fills the rows."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from contract.batch import Batch
from contract.vocab import Vocab
from contract.windows import BatchSpec, Windows
from objectives.algebra.sequences import Sequences, prepend
from objectives.objective import Denoiser, InputsTargets, Masked, Objective
from objectives.rows import layout
from objectives.rows.declared import check_declared
from objectives.rows.lengths import RowShape


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
        examples, chosen = [], []
        if windows.parts is None:
            for denoiser, ids in self._alike:
                places = np.flatnonzero(np.isin(windows.denoiser_ids, ids))
                if places.size:
                    chosen.append(places)
                    examples.append(self._corrupt(denoiser, windows, places))
            return _interleave(examples, chosen)
        for denoiser_id, parts in enumerate(self._planned_parts):
            for part, denoiser in enumerate(parts):
                is_chosen = windows.denoiser_ids == denoiser_id
                if len(parts) > 1:
                    is_chosen &= windows.parts == part
                if is_chosen.any():
                    chosen.append(np.flatnonzero(is_chosen))
                    examples.append(self._corrupt(denoiser, windows, chosen[-1]))
        return _interleave(examples, chosen)

    @functools.cached_property
    def _alike(self) -> list[tuple[Denoiser, list[int]]]:
        """The denoisers that corrupt alike, which are one denoiser on several corpora, and their numbers."""
        alike: dict[tuple[str, Objective, str], tuple[Denoiser, list[int]]] = {}
        for k, denoiser in enumerate(self.denoisers):
            key = (denoiser.field, denoiser.objective, denoiser.mode)
            alike.setdefault(key, (denoiser, []))[1].append(k)
        return list(alike.values())

    @functools.cached_property
    def _planned_parts(self) -> list[tuple[Denoiser, ...]]:
        """The parts of each denoiser in the row plan."""
        plan = self.batch_spec.plan
        assert plan is not None  # windows have parts only where rows are planned
        counts = [int(plan.parts[plan.denoiser_ids == k].max()) + 1 for k in range(len(self.denoisers))]
        return [denoiser.parts(count) for denoiser, count in zip(self.denoisers, counts, strict=True)]

    @property
    def _has_attention_order(self) -> bool:
        # All batches must have the same fields, also batches without an example of such a denoiser.
        return any(denoiser.objective.has_attention_order for denoiser in self.denoisers)

    def _corrupt(self, denoiser: Denoiser, windows: Windows, chosen: np.ndarray) -> InputsTargets | Masked:
        lengths = windows.lengths[chosen]
        tokens = windows.tokens[chosen, : lengths.max()]
        columns = extra_columns_of(denoiser.objective.extra_columns, windows, chosen)
        examples = denoiser.objective.corrupt(tokens, lengths, windows.keys[chosen], self.vocab, **columns)
        check_declared(denoiser.objective, examples, lengths)
        if isinstance(examples, Masked) and examples.attention_order is None and self._has_attention_order:
            examples = examples._replace(attention_order=np.zeros(examples.targets.shape, np.int32))
        if not denoiser.mode:
            return examples
        return examples._replace(inputs=prepend(examples.inputs, self.vocab.mode(denoiser.mode)))


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
    if len(parts) == 1:
        return parts[0]  # the examples of a single part are in order

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
