"""Checks of what callers give to the methods of a Model, and messages in which flags of commands are arguments."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from contract.errors import ConfigError
from generate.texts import Options

P = ParamSpec("P")
T = TypeVar("T")

# Flags that are arguments of the functions and methods of this package.
_ARGUMENTS = r"--(?=(mode|step|max_tokens|temperature|top_k|top_p|num_samples|seed|batch_size|workdir|config)\b)"


def named_as_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Returns `function` with the flags in the messages of its ConfigErrors as arguments: "step=7" for "--step=7"."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            raise ConfigError(re.sub(_ARGUMENTS, "", str(error))) from error.__cause__

    return wrapped


def listed(texts: Any, *, has_pairs: bool = False) -> tuple[list[Any], bool]:
    """Returns the texts as a list, and whether they were one text.

    has_pairs: whether a text is a pair of strings, a prompt and its response. Otherwise a tuple is a sequence of texts.

    Raises ConfigError for what is neither a text nor a sequence of texts.
    """
    is_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(part, str) for part in texts)
    if isinstance(texts, str | np.ndarray) or (has_pairs and is_pair):
        return [texts], True
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise ConfigError(f"texts must be one text or a list of texts, not {type(texts).__name__}")
    return list(texts), False


def strings(texts: Sequence[Any]) -> Sequence[str]:
    """Returns `texts`. Raises ConfigError, with its number, for a text that is not a string."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"text {number} must be a string, not {type(text).__name__}")
    return texts


def generation_options(given: Mapping[str, Any]) -> Options:
    """Returns the options of Model.generate. Raises ConfigError for an unknown name."""
    names = [field.name for field in dataclasses.fields(Options)]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ConfigError(f"{unknown[0]} is not an option of generate: use {', '.join(names)}")
    return Options(**given)
