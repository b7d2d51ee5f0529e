"""Reads the options of a config.json, with the defaults of the class that the folder names."""

import math
from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError

# Options of every class that change what the tensors mean or which code runs, and their value in ordinary folders.
_EVERY_CLASS = {"quantization_config": None, "auto_map": None, "pruned_heads": None, "adapters": None}
# Types of the options whose default is null.
_OPTIONAL = {
    "dense_act_fn": str,
    "head_dim": int,
    "is_gated_act": bool,
    "n_inner": int,
    "num_decoder_layers": int,
    "num_key_value_heads": int,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "scale_decoder_outputs": bool,
}


class Options:
    """The options of a config.json. An option that is absent or null has the default of its class in `transformers`.

    `transformers` reads no options but those of the class's configuration, so other entries of the file have no effect.

    aliases: other names of options -> their names (`attribute_map` of the configuration). Raises ConfigError for an
    option that is there by both names with different values.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str]):
        self._values, self._defaults = dict(values), defaults
        for alias, name in aliases.items():
            value = values.get(alias)
            if value is None:
                continue
            if values.get(name) not in (None, value):
                raise ConfigError(
                    f"config.json: {alias}={value!r} and {name}={values[name]!r} are names of the same option: "
                    "remove one of them"
                )
            self._values[name] = value
        for name in _EVERY_CLASS:
            if values.get(name):
                raise ConfigError(f"config.json: {name} is not supported: only plain weights and the library's classes")

    def __getitem__(self, name: str) -> Any:
        """Returns the value. Raises ConfigError for another type than the default's and a negative or infinite number.

        An integer whose default is null must be above 0.
        """
        default, value = self._defaults[name], self._values.get(name)
        if value is None:
            return default
        wanted = _OPTIONAL[name] if default is None else type(default)
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ConfigError(f"config.json: {name}={value!r} must be of type {wanted.__name__}")
        if wanted in (int, float):
            least = 1 if default is None else 0
            if not least <= value < math.inf:
                raise ConfigError(f"config.json: {name}={value!r} must be a finite number, {least} or more")
        return value

    def require(self, name: str, *allowed: Any) -> Any:
        """Returns the value. Raises ConfigError if it is not one of `allowed`."""
        value = self[name]
        if value not in allowed:
            raise ConfigError(f"config.json: {name}={value!r} is not supported, only {_one_of(allowed)}")
        return value

    def choose(self, name: str, choices: Mapping[str, Any]) -> Any:
        """Returns the choice that the value names. Raises ConfigError for any other value."""
        return choices[self.require(name, *choices)]

    def quotient(self, name: str, divisor: str) -> int:
        """Returns the value of `name` divided by that of `divisor`. Raises ConfigError if it is not whole."""
        if self[divisor] < 1 or self[name] % self[divisor]:
            raise ConfigError(f"config.json: {divisor}={self[divisor]} must divide {name}={self[name]}")
        return self[name] // self[divisor]


def _one_of(values: tuple[Any, ...]) -> str:
    return " or ".join(map(repr, values))
