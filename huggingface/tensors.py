"""Maps the tensors of a Hugging Face folder to parameters, and back, by a table with a row for each tensor."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from contract.errors import ConfigError
from models.parameters import Params, leaf_name, stacks_layers

_SHOWN = 4  # names in a message


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a folder, and the parameters that it holds.

    Tensors of linear maps are [outputs, inputs] in most classes of `transformers`; kernels are [inputs, outputs].
    """

    name: str  # the tensor's; {} is the number of the layer, for parameters with a leading layer axis
    paths: tuple[str, ...]  # the parameters', as models.parameters.leaf_name; several are joined along the outputs
    transposed: bool = False  # whether the tensor is the transposed parameter
    extra_rows: int = 0  # rows before the parameter's: tables of positions that begin after a padding index
    copies: tuple[str, ...] = ()  # other names of the same tensor, for modules that share it


class Renamed(Mapping[str, np.ndarray]):
    """Some of `tensors`, under other names. A tensor is looked up when it is used, so tensors can stay on disk.

    names: new name -> name in `tensors`.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], names: Mapping[str, str]):
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def linear(name: str, path: str, *, bias: bool, **options) -> list[Tensor]:
    """Returns the rows of a linear map, `name`.weight and, with `bias`, `name`.bias."""
    rows = [Tensor(f"{name}.weight", (f"{path}/kernel",), transposed=True, **options)]
    return rows + ([Tensor(f"{name}.bias", (f"{path}/bias",))] if bias else [])


def norm(name: str, path: str, *, bias: bool) -> list[Tensor]:
    """Returns the rows of a norm, `name`.weight and, with `bias`, `name`.bias."""
    rows = [Tensor(f"{name}.weight", (f"{path}/scale",))]
    return rows + ([Tensor(f"{name}.bias", (f"{path}/bias",))] if bias else [])


def to_tensors(params: Params, table: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Returns the tensors of `params` by name, float32. Copies are not there: `transformers` shares them again.

    Arrays are in C order. Extra rows are 0. Raises ValueError if the paths of the table and of `params` differ.
    """
    leaves = {leaf_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    _check_paths(leaves.keys(), table)
    tensors = {}
    for row in table:
        for name, arrays in _by_layer(row, leaves):
            array = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
            array = array.T if row.transposed else array
            array = np.pad(array, ((row.extra_rows, 0), *[(0, 0)] * (array.ndim - 1))) if row.extra_rows else array
            # In C order: safetensors writes an array's memory as it is, so a transposed view would be written wrongly.
            tensors[name] = np.array(array, np.float32, order="C")
    return tensors


def to_params(
    tensors: Mapping[str, np.ndarray], table: Sequence[Tensor], shapes: Params, *, unused: Sequence[str] = ()
) -> Params:
    """Returns the float32 parameters that `tensors` hold, a nested dict like `shapes`.

    Args:
      tensors: by name, of any floating dtype. Copies of a tensor may be there, if they are equal.
      table: a row for each tensor.
      shapes: of the parameters, such as from `jax.eval_shape`.
      unused: regular expressions for the whole names of tensors that `transformers` does not read either.

    Raises ConfigError that names missing tensors, surplus tensors, a tensor of another shape and unequal copies.
    """
    expected = {leaf_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    _check_paths(expected.keys(), table)
    sizes = {path: [1] if not stacks_layers(path) else range(shape[0]) for path, shape in expected.items()}
    names = {row: _names(row, len(sizes[row.paths[0]])) for row in table}
    _check_names(tensors, names, unused)
    params = {}
    for row in table:
        shape = [expected[path][1:] if stacks_layers(path) else expected[path] for path in row.paths]
        layers = [_parts(tensors, row, copies, shape) for copies in names[row]]
        for k, path in enumerate(row.paths):
            parts = [layer[k] for layer in layers]
            params[path] = np.stack(parts) if stacks_layers(path) else parts[0]
    return jax.tree_util.tree_map_with_path(lambda path, _: params[leaf_name(path)], shapes)


def _check_paths(paths: Iterator[str], table: Sequence[Tensor]) -> None:
    mapped = [path for row in table for path in row.paths]
    if sorted(mapped) != sorted(paths):
        raise ValueError(f"the table and the parameters differ in {sorted(set(mapped) ^ set(paths))}")


def _by_layer(row: Tensor, leaves: Mapping[str, np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yields the name and the parameters of each of the row's tensors: one, or one for each layer."""
    arrays = [leaves[path] for path in row.paths]
    if not stacks_layers(row.paths[0]):
        yield row.name, arrays
        return
    for layer in range(len(arrays[0])):
        yield row.name.format(layer), [array[layer] for array in arrays]


def _names(row: Tensor, num_layers: int) -> list[tuple[str, ...]]:
    """Returns, for each of the row's tensors, its names: the first is its own, the others are those of its copies."""
    if not stacks_layers(row.paths[0]):
        return [(row.name, *row.copies)]
    return [tuple(name.format(layer) for name in (row.name, *row.copies)) for layer in range(num_layers)]


def _check_names(
    tensors: Mapping[str, np.ndarray], names: Mapping[Tensor, list[tuple[str, ...]]], unused: Sequence[str]
) -> None:
    groups = [group for groups in names.values() for group in groups]
    missing = [group[0] for group in groups if not tensors.keys() & set(group)]
    if missing:
        raise ConfigError(f"{_list('tensor', missing)} missing")
    known, pattern = (
        {name for group in groups for name in group},
        re.compile("|".join(f"({p})" for p in unused) or "$."),
    )
    surplus = [name for name in tensors if name not in known and not pattern.fullmatch(name)]
    if surplus:
        raise ConfigError(f"{_list('tensor', surplus)} surplus: the model of config.json does not have them")


def _list(noun: str, names: Sequence[str]) -> str:
    """Returns such as "1 tensor (a.weight) is", "2 tensors (a.weight, b.weight) are"."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} ({shown}) {'are' if len(names) > 1 else 'is'}"


def _parts(
    tensors: Mapping[str, np.ndarray], row: Tensor, names: tuple[str, ...], shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """Returns the parameters, of these `shapes`, that one tensor holds."""
    present = [name for name in names if name in tensors]
    array = tensors[present[0]]
    for copy in present[1:]:
        if not np.array_equal(array, tensors[copy]):
            raise ConfigError(f"tensors {present[0]} and {copy} must be equal: by config.json the model shares them")
    whole = functools.reduce(lambda a, b: (*a[:-1], a[-1] + b[-1]), shapes)
    whole = (whole[0] + row.extra_rows, *whole[1:])
    wanted = whole[::-1] if row.transposed else whole
    if tuple(array.shape) != wanted:
        raise ConfigError(
            f"tensor {present[0]} has shape {list(array.shape)}, and config.json gives a model with {list(wanted)}"
        )
    array = (array.T if row.transposed else array).astype(np.float32)[row.extra_rows :]
    return np.split(array, np.cumsum([shape[-1] for shape in shapes[:-1]]), axis=-1)
