"""Reads the options of a config.json, with the defaults of the class that the folder names."""

from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError

# Options of every class that change what the tensors mean or which code runs, and their value in ordinary folders.
_EVERY_CLASS = {"quantization_config": None, "auto_map": None, "pruned_heads": None, "adapters": None}


class Options:
    """The options of a config.json. An option that is absent or null has the default of its class in `transformers`.

    `transformers` reads no options but those of the class's configuration, so other entries of the file have no effect.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]):
        self._values, self._defaults = values, defaults
        for name in _EVERY_CLASS:
            if values.get(name):
                raise ConfigError(f"config.json: {name} is not supported: only plain weights and the library's classes")

    def __getitem__(self, name: str) -> Any:
        """Returns the value. Raises ConfigError for a value whose type is not the default's."""
        default, value = self._defaults[name], self._values.get(name)
        if value is None:
            return default
        if default is not None and type(value) is not type(default) and not _is_number(value, default):
            raise ConfigError(f"config.json: {name}={value!r} must be of type {type(default).__name__}")
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


def _is_number(value: Any, default: Any) -> bool:
    return type(default) is float and type(value) is int


def _one_of(values: tuple[Any, ...]) -> str:
    return " or ".join(map(repr, values))
