"""The base class of families. A family is one class of `transformers`, such as T5ForConditionalGeneration.

To add a family: subclass Family in a file of this package, and add it to FAMILIES in families.py. The test of that table
then compares it with `transformers`.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

from contract.errors import ConfigError
from contract.vocab import Vocab
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import init_params
from train.huggingface.options import Options
from train.huggingface.tensors import Tensor, to_params, to_tensors

# Fields of config.model that change only how a model computes, not what it computes.
MACHINE_FIELDS = {"attention": "xla", "remat": "none", "scan_unroll": 1}


class Family(abc.ABC):
    """A class of `transformers`: which models it can hold, its config.json and its tensors."""

    architecture: ClassVar[str]  # the name of the class, the entry of "architectures" in config.json
    aliases: ClassVar[tuple[str, ...]] = ()  # other entries of "architectures" whose folders hold the same tensors
    model_type: ClassVar[str]
    heads: ClassVar[tuple[str, ...]] = ()  # entries of the parameters besides "transformer"
    prefix: ClassVar[str] = ""  # of the tensors of the model without its head; folders of that model lack the prefix
    defaults: ClassVar[Mapping[str, Any]]  # the options of config.json that are read, with the class's defaults
    fields: ClassVar[Mapping[str, tuple[Any, ...]]]  # field of the model -> the values that the class can hold
    unused: ClassVar[tuple[str, ...]] = ()  # regular expressions of tensors that the class does not read

    # ---- from a folder

    def model_fields(self, hf_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the fields of config.model, without MACHINE_FIELDS, for a folder.

        They include `vocab_size` and `max_length`, the rows of the tables of tokens and positions (0: no table).

        hf_config: the contents of config.json. tensors: the folder's; only their names and shapes are read, except that
        T5's input and output tables are compared.

        Raises ConfigError for an option that this project's models lack.
        """
        return self._model_fields(Options(hf_config, self.defaults), self._named(tensors))

    def model(self, hf_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str) -> ModelConfig:
        """Returns the model of a folder, which computes in `dtype`. Raises ConfigError as `model_fields`."""
        fields = self.model_fields(hf_config, tensors) | MACHINE_FIELDS
        fields |= {"max_length": fields["max_length"] or 1, "dtype": dtype}
        try:
            return ModelConfig(**fields, has_prefix=False, predicts_tokens=self.fields["predicts_tokens"][0])
        except ValueError as error:
            raise ConfigError(f"config.json: {error}") from error

    def to_params(self, tensors: Mapping[str, np.ndarray], model: ModelConfig, hf_config: Mapping[str, Any]) -> Params:
        """Returns the float32 parameters that `tensors` hold: {"transformer": ...} and, by family, a head.

        Raises ConfigError that names missing tensors, surplus tensors, a tensor of another shape, unequal copies of a
        shared tensor, and a tensor that must be zero.
        """
        shapes = jax.eval_shape(lambda key: self.init_params(model, key), jax.random.key(0))
        tensors = self._named(tensors)
        self.check_tensors(tensors)
        return to_params(tensors, self.table(model, hf_config), shapes, unused=self.unused)

    # ---- to a folder

    def check_model(self, model: ModelConfig) -> None:
        """Raises ConfigError, which names the first field, if the class cannot hold `model`."""
        for message in self.mismatches(model):
            raise ConfigError(message)

    def mismatches(self, model: ModelConfig) -> list[str]:
        """Returns a message for each field of `model` that the class cannot hold."""
        found = []
        for name, allowed in self.fields.items():
            value = getattr(model, name)
            if value not in allowed:
                values = " or ".join(map(repr, allowed))
                field = "data.bidirectional_inputs" if name == "has_prefix" else f"model.{name}"
                found.append(f"{field}={value!r}: {self.architecture} of transformers has {values}")
        return found

    @abc.abstractmethod
    def huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        """Returns the contents of config.json. The class must be able to hold `model` (`check_model`)."""

    def to_tensors(self, params: Params, model: ModelConfig, hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the tensors of a folder, float32 by name. hf_config: as from `huggingface_config`.

        A tensor that modules share is there once.
        """
        return to_tensors(params, self.table(model, hf_config))

    # ---- of each family

    @abc.abstractmethod
    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """See `model_fields`."""

    @abc.abstractmethod
    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> Sequence[Tensor]:
        """Returns a row for each tensor of the class."""

    def init_params(self, model: ModelConfig, key: Array) -> Params:
        """Returns parameters of `model` and of the class's heads, drawn from `key`."""
        return {"transformer": init_params(model, key)}

    def check_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:  # noqa: B027  optional
        """Raises ConfigError for a tensor with values that this project's models cannot hold."""

    def _named(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns `tensors` by the class's names: with the prefix, and norms as today's `transformers` names them.

        Folders of the model without a head lack the prefix, and old folders have the names of TensorFlow.
        """
        lacks_prefix = self.prefix and not any(name.startswith(self.prefix) for name in tensors)
        prefix = self.prefix if lacks_prefix else ""
        return {prefix + _current(name): tensor for name, tensor in tensors.items()}


def _current(name: str) -> str:
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
