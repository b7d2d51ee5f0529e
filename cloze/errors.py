"""Messages of ConfigErrors for callers from Python, where the flags of commands are arguments."""

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from contract.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

# Flags that are arguments of the functions and methods of this package.
_ARGUMENTS = (
    r"--(?=(mode|step|max_tokens|temperature|top_k|top_p|num_samples|seed|batch_size|workdir|config|start_anew)\b)"
)


def named_as_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Returns `function` with the flags in the messages of its ConfigErrors as arguments: "step=7" for "--step=7"."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            raise ConfigError(re.sub(_ARGUMENTS, "", str(error))) from error.__cause__

    return wrapped
