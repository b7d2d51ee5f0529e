"""Configs by name, as benchmarks take them on the command line: "ul2" or "ul2:base"."""

import importlib
import pkgutil
from collections.abc import Iterator

from ml_collections import ConfigDict

import configs
from contract.errors import ConfigError

_NOT_EXPERIMENTS = {"base", "architectures", "machines", "recipes"}


def named_config(name: str, default_preset: str) -> ConfigDict:
    """Returns the config of `name`, a file of configs/ with or without ":preset".

    Raises ConfigError if there is no such file or preset.
    """
    module, _, preset = name.partition(":")
    try:
        return importlib.import_module(f"configs.{module}").get_config(preset or default_preset)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{name!r} must be a file of configs/, optionally with :preset: {error}") from None


def every_variant() -> Iterator[str]:
    """Yields the name of every experiment in configs/: "name", or "name:variant" for each of its variants."""
    modules = {module.name for module in pkgutil.iter_modules(configs.__path__) if not module.ispkg}
    for name in sorted(modules - _NOT_EXPERIMENTS):
        variants = getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", {})
        yield from (f"{name}:{variant}" for variant in variants) if variants else (name,)
