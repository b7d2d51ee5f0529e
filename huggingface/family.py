"""The base class of families, and the table that maps the tensors of a family to parameters and back.

A family is one class of `transformers`, such as T5ForConditionalGeneration.

To add a family: subclass Family in a file of this package, and add an instance to FAMILIES in families.py and a small
config to tests/huggingface/comparison.py.
"""

import abc
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx
from jax import Array

from contract.errors import ConfigError
from contract.ranges import check_ranges
from contract.vocab import Vocab
from huggingface.config_json import Options
from models.config import ModelConfig
from models.parameters import Params, init_module, leaf_name, stacks_layers
from models.transformer import init_params

# Fields of config.model that change only how a model computes, not what it computes.
MACHINE_FIELDS = {"attention": "xla", "remat": "none", "scan_unroll": 0}
# Fields of config.model that change only how it is trained.
TRAINING_FIELDS = ("parameterization", "base_d_model", "base_num_layers", "attention_dropout")

# Activations of `transformers`, by name -> model.mlp. "gelu" is the exact one there. A model is written with the first
# name of its formula.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "silu": "silu",
    "swish": "silu",
}

# The fields of config.model that most classes do not have, with the values that switch them off.
_RARE_FIELDS = dict(
    embedding_size=0,
    relative_num_buckets=32,
    relative_max_distance=128,
    rope_theta=10000.0,
    share_stacks=False,
    num_token_types=0,
    initializer="normal",
    dropout_broadcast_positions=False,
)
# Values of `Family.equal`.
ALL_HEADS: dict[str, Callable[[ModelConfig], int]] = {
    "num_kv_heads": lambda model: model.num_heads,
    "head_dim": lambda model: model.d_model // model.num_heads,
    "embedding_width": lambda model: model.d_model,
}
_SHOWN = 4  # names in a message
# Values of the fields of config.model that most classes can hold alone.
_USUAL = {"embedding_norm": False, "prediction_head": "linear", "scale_attention": True, "scale_logits": False}
_DERIVED = ("has_prefix", "one_segment", "predicts_tokens")  # fields of the model that are not fields of config.model


def _defaults() -> dict[str, Any]:
    """Returns the fields of config.model with a default in models/config.py: the model without the field."""
    found = {field.name: field.default for field in dataclasses.fields(ModelConfig) if field.name not in _DERIVED}
    return {name: default for name, default in found.items() if default is not dataclasses.MISSING}


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
    is_repeated: bool = False  # whether a folder has the copies too, and the first name that is there counts
    heads: int = 0  # the outputs are head by head, and each head's those of all paths; 0: path by path
    offset: float = 0.0  # the parameter is the tensor plus this number
    first_layer: int = 0  # the first layer with the tensor; the parameter of those before is 1, and nothing reads it


def holds(**fields: Any) -> dict[str, tuple[Any, ...]]:
    """Returns `Family.fields`: the values that a class can hold, one or a tuple of several, of each field."""
    every = fields | {name: value for name, value in (_USUAL | {"predicts_tokens": True}).items() if name not in fields}
    return {name: value if isinstance(value, tuple) else (value,) for name, value in every.items()}


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


def norm(name: str, path: str, *, bias: bool, offset: float = 0.0) -> list[Tensor]:
    """Returns the rows of a norm, `name`.weight and, with `bias`, `name`.bias. offset: of the scale."""
    rows = [Tensor(f"{name}.weight", (f"{path}/scale",), offset=offset)]
    return rows + ([Tensor(f"{name}.bias", (f"{path}/bias",))] if bias else [])


class Family(abc.ABC):
    """A class of `transformers`: which models it can hold, its config.json and its tensors."""

    architecture: ClassVar[str]  # the name of the class, the entry of "architectures" in config.json
    aliases: ClassVar[tuple[str, ...]] = ()  # other "architectures" with the same tensors; not inherited
    model_type: ClassVar[str]
    # Entries of the parameters besides "transformer", with their module: a function of the model and of `rngs`.
    heads: ClassVar[Mapping[str, Callable[..., nnx.Module]]] = {}
    prefix: ClassVar[str] = ""  # of the tensors of the model without its head; folders of that model lack the prefix
    defaults: ClassVar[Mapping[str, Any]]  # the options of config.json that are read, with the class's defaults
    option_aliases: ClassVar[Mapping[str, str]] = {}  # other names of options: `attribute_map` of the configuration
    required: ClassVar[Mapping[str, Any]] = {}  # options -> the only supported value
    names: ClassVar[Mapping[str, str]]  # field of the model -> the option with the same value
    activation: ClassVar[tuple[str, Mapping[str, str]]]  # the option of the activation, and its values -> model.mlp
    fields: ClassVar[Mapping[str, tuple[Any, ...]]]  # field of the model -> the values that the class can hold
    equal: ClassVar[Mapping[str, Callable[[ModelConfig], int]]] = {}  # field of the model -> the value it must have
    start_option: ClassVar[str] = ""  # the option with the id that the decoder reads first; "" without a decoder
    # Options that are rates of dropout. The first is model.dropout_rate; "att..." is that of attention probabilities.
    dropouts: ClassVar[tuple[str, ...]]
    unused: ClassVar[tuple[str, ...]] = ()  # regular expressions of tensors that the class does not read
    free: ClassVar[tuple[str, ...]] = ()  # fields of the model with a default that may have any value

    # From a folder

    def flat(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns config.json, or what is already flat, without sections of stacks: the argument of other methods.

        Raises ConfigError for stacks that differ.
        """
        return hf_config

    def options(self, hf_config: Mapping[str, Any]) -> Options:
        """Returns the options of config.json. Raises ConfigError as Options."""
        return Options(hf_config, self.defaults, self.option_aliases)

    def model_fields(self, hf_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the fields of config.model, without MACHINE_FIELDS, for a folder.

        They include `vocab_size`, and `max_length`, which is 0 for a model without a limit. A decoder-only model also
        needs data.bidirectional_inputs=False.

        hf_config: the contents of config.json. tensors: the folder's.

        Raises ConfigError for an option that this project's models do not have.
        """
        options = self.options(hf_config)
        for name, value in self.required.items():
            options.require(name, value)
        fixed = {name: values[0] for name, values in self.fields.items() if name not in _DERIVED and len(values) == 1}
        option, activations = self.activation
        read = {field: options[name] for field, name in self.names.items()}
        read["mlp"] = options.choose(option, {name: m for name, m in activations.items() if m in self.fields["mlp"]})
        if "head_dim" not in self.names:
            read["head_dim"] = options.quotient(self.names["d_model"], self.names["num_heads"])
        rate = read["dropout_rate"] = float(options[self.dropouts[0]])
        read["attention_dropout"] = not rate or len(self._rates(options)) == len(self.dropouts)
        own = fixed | read | self._model_fields(options, self._named(tensors))
        return _defaults() | _RARE_FIELDS | own

    def model(self, hf_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str) -> ModelConfig:
        """Returns the model of a folder, which computes in `dtype`. Raises ConfigError as `model_fields`."""
        fields = self.model_fields(hf_config, tensors) | MACHINE_FIELDS
        fields |= {"max_length": fields["max_length"] or 1, "dtype": dtype}
        try:
            check_ranges(ModelConfig, dict.fromkeys(_DERIVED) | fields, "model")
            return ModelConfig(**fields, has_prefix=False, predicts_tokens=self.fields["predicts_tokens"][0])
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"config.json: {error}") from error

    def notes(self, hf_config: Mapping[str, Any]) -> list[str]:
        """Returns a line for each option that models here lack and that changes training or generation, not logits."""
        options, lines = self.options(hf_config), []
        rates = self._rates(options)
        if len(set(rates.values())) > 1:
            given = ", ".join(f"{name}={rate}" for name, rate in rates.items())
            lines.append(f"config.json has {given}: model.dropout_rate={rates[self.dropouts[0]]} is used for all")
        return lines

    def _rates(self, options: Options) -> dict[str, Any]:
        """Returns `dropouts` with their values, without one of 0 for attention (model.attention_dropout=False)."""
        return {name: options[name] for name in self.dropouts if options[name] or not name.startswith("att")}

    def to_params(self, tensors: Mapping[str, np.ndarray], model: ModelConfig, hf_config: Mapping[str, Any]) -> Params:
        """Returns the float32 parameters that `tensors` hold: {"transformer": ...} and the entries of `heads`.

        Raises ConfigError that names missing tensors, surplus tensors, a tensor of another shape, unequal copies of a
        shared tensor, and a tensor that must be zero.
        """
        tensors, zeros = self._named(tensors), self.zeros(model)
        for name in zeros.keys() & tensors.keys():
            if np.any(tensors[name]):
                raise ConfigError(f"tensor {name} must be 0: the models of this project do not have this tensor")
        tensors = Renamed(tensors, {name: name for name in tensors if name not in zeros})
        return to_params(tensors, self.table(model, hf_config), self.shapes(model), unused=self.unused)

    # To a folder

    def check_model(self, model: ModelConfig) -> None:
        """Raises ConfigError, which names the first field, if the class cannot hold `model`."""
        for message in self.mismatches(model):
            raise ConfigError(message)

    def mismatches(self, model: ModelConfig) -> list[str]:
        """Returns a message for each field of `model` that the class cannot hold."""
        # A field that this class does not name, because it was added since, must have its default.
        free = (*self.free, *TRAINING_FIELDS)
        others = {name: (default,) for name, default in _defaults().items() if name not in free}
        equal = {name: (value(model),) for name, value in self.equal.items()}
        found = []
        for name, allowed in (others | dict(self.fields) | equal).items():
            value = getattr(model, name)
            if value not in allowed:
                field = "data.bidirectional_inputs" if name == "has_prefix" else f"model.{name}"
                values = " or ".join(map(repr, allowed))
                remedy = ": set it in training" if name == "has_prefix" else ""
                found.append(f"{field}={value!r}: {self.architecture} of transformers has {values}{remedy}")
        return found

    def huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        """Returns the contents of config.json. Raises ConfigError as `check_model`."""
        self.check_model(model)
        option, activations = self.activation
        config = {"architectures": [self.architecture], "model_type": self.model_type} | self.required
        dropped = [name for name in self.dropouts if model.attention_dropout or not name.startswith("att")]
        config |= dict.fromkeys(self.dropouts, 0.0) | dict.fromkeys(dropped, model.dropout_rate)
        config |= {name: getattr(model, field) for field, name in self.names.items()}
        config[option] = next(name for name, mlp in activations.items() if mlp == model.mlp)
        return config | self._huggingface_config(model, vocab)

    def nested(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of config.json: `config` with the sections that `flat` removes."""
        return dict(config)

    def to_tensors(self, params: Params, model: ModelConfig, hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the tensors of a folder, float32 by name. hf_config: as from `huggingface_config`.

        A tensor that modules share is there once, as `transformers` writes it.
        """
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.zeros(model).items()}
        return to_tensors(params, self.table(model, hf_config)) | zeros

    # Of each family

    @abc.abstractmethod
    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the fields that the table of options does not determine. Raises ConfigError as `model_fields`."""

    @abc.abstractmethod
    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        """Returns the options that `names` does not determine, for a model that the class can hold."""

    @abc.abstractmethod
    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> Sequence[Tensor]:
        """Returns a row for each tensor of the class."""

    def zeros(self, model: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Returns the name and shape of each tensor that the class has and `model` lacks, so that it must be 0."""
        return {}

    def shapes(self, model: ModelConfig) -> Params:
        """Returns the shapes of the parameters of `model` and of the class's heads."""

        def init(key: Array) -> Params:
            heads = {name: init_module(head, model, key=key) for name, head in self.heads.items()}
            return {"transformer": init_params(model, key)} | heads

        return jax.eval_shape(init, jax.random.key(0))

    def _named(self, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns `tensors` by the class's names: with the prefix, and norms as today's `transformers` names them.

        Folders of the model without a head lack the prefix, and old folders have the names of TensorFlow. Raises
        ConfigError for a tensor with both names.
        """
        prefix = "" if any(name.startswith(self.prefix) for name in tensors) else self.prefix
        names = {}
        for name in tensors:
            current = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            if (other := names.setdefault(prefix + current, name)) != name:
                raise ConfigError(f"tensors {other} and {name} are the same parameter: remove one of them")
        return Renamed(tensors, names)


def to_tensors(params: Params, table: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Returns the tensors of `params` by name, float32. Shared copies are not there: `transformers` makes them.

    Arrays are in C order. Extra rows are 0. Raises ValueError if the paths of the table and of `params` differ.
    """
    leaves = {leaf_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    mapped = [path for row in table for path in row.paths]
    if sorted(mapped) != sorted(leaves):
        raise ValueError(f"the table and the parameters differ in {sorted(set(mapped) ^ leaves.keys())}")
    tensors = {}
    for row in table:
        arrays = np.concatenate([leaves[path] for path in row.paths], axis=-1)
        arrays = arrays if stacks_layers(row.paths[0]) else arrays[None]
        for (name, *copies), array in zip(_names(row, len(arrays)), arrays[row.first_layer :], strict=True):
            array = _regrouped(array, len(row.paths), row.heads) if row.heads else array
            array = (array.T if row.transposed else array) - np.float32(row.offset)
            array = np.pad(array, ((row.extra_rows, 0), *[(0, 0)] * (array.ndim - 1))) if row.extra_rows else array
            # In C order: safetensors writes an array's memory as it is, so a transposed view would be written wrongly.
            tensors[name] = np.array(array, np.float32, order="C")
            tensors |= {copy: tensors[name].copy() for copy in copies if row.is_repeated}
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
    sizes = {path: [1] if not stacks_layers(path) else range(shape[0]) for path, shape in expected.items()}
    names = {row: _names(row, len(sizes[row.paths[0]])) for row in table}
    _check_names(tensors, names, unused)
    params = {}
    for row in table:
        shape = [expected[path][1:] if stacks_layers(path) else expected[path] for path in row.paths]
        layers = [[np.ones(part, np.float32) for part in shape]] * row.first_layer
        layers += [_parts(tensors, row, copies, shape) for copies in names[row]]
        for k, path in enumerate(row.paths):
            parts = [layer[k] for layer in layers]
            params[path] = np.stack(parts) if stacks_layers(path) else parts[0]
    return jax.tree_util.tree_map_with_path(lambda path, _: params[leaf_name(path)], shapes)


def _regrouped(array: np.ndarray, outer: int, inner: int) -> np.ndarray:
    """Returns `array`, whose last axis has `outer` groups of `inner` parts, with `inner` groups of `outer` parts."""
    parts = array.reshape(*array.shape[:-1], outer, inner, -1)
    return parts.swapaxes(-3, -2).reshape(array.shape)


def _names(row: Tensor, num_layers: int) -> list[tuple[str, ...]]:
    """Returns, for each of the row's tensors, its names: the first is its own, the others are those of its copies."""
    layers = range(row.first_layer, num_layers)
    return [tuple(name.format(layer) for name in (row.name, *row.copies)) for layer in layers]


def _check_names(
    tensors: Mapping[str, np.ndarray], names: Mapping[Tensor, list[tuple[str, ...]]], unused: Sequence[str]
) -> None:
    groups = [group for groups in names.values() for group in groups]
    missing = [group[0] for group in groups if not tensors.keys() & set(group)]
    if missing:
        raise ConfigError(f"{len(missing)} missing tensors: {', '.join(missing[:_SHOWN])}")
    known = {name for group in groups for name in group}
    surplus = [name for name in tensors if name not in known and not any(re.fullmatch(p, name) for p in unused)]
    if surplus:
        shown = ", ".join(surplus[:_SHOWN])
        raise ConfigError(f"{len(surplus)} surplus tensors, which the model of config.json does not have: {shown}")


def _parts(
    tensors: Mapping[str, np.ndarray], row: Tensor, names: tuple[str, ...], shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """Returns the parameters, of these `shapes`, that one tensor holds."""
    present = [name for name in names if name in tensors]
    array = tensors[present[0]]
    for copy in present[1:] if not row.is_repeated else ():
        if not np.array_equal(array, tensors[copy]):
            raise ConfigError(f"tensors {present[0]} and {copy} must be equal: by config.json the model shares them")
    whole = functools.reduce(lambda a, b: (*a[:-1], a[-1] + b[-1]), shapes)
    whole = (whole[0] + row.extra_rows, *whole[1:])
    wanted = whole[::-1] if row.transposed else whole
    if tuple(array.shape) != wanted:
        raise ConfigError(
            f"tensor {present[0]} has shape {list(array.shape)}, and config.json gives a model with {list(wanted)}"
        )
    array = (array.T if row.transposed else array).astype(np.float32)[row.extra_rows :] + np.float32(row.offset)
    array = _regrouped(array, row.heads, len(shapes)) if row.heads else array
    return np.split(array, np.cumsum([shape[-1] for shape in shapes[:-1]]), axis=-1)
