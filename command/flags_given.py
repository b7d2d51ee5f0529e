"""Command lines that do not contradict themselves, and errors that name flags."""

import contextlib
import re
from collections.abc import Container, Iterator

from absl import flags

from contract.errors import ConfigError


def check_given_once(flag_values: flags.FlagValues) -> None:
    """Raises ConfigError for a flag that the parsed command line has twice, unless its values form a list."""
    for name in flag_values:
        flag = flag_values[name]
        if flag.present > 1 and not isinstance(flag, flags.MultiFlag):
            raise ConfigError(f"--{name} is given {flag.present} times: give it once")


@contextlib.contextmanager
def naming_flags(names: Container[str]) -> Iterator[None]:
    """Makes the ConfigErrors of this context name flags, as in --path, in place of fields of a config, data.path.

    Text in quotes and paths, which a user wrote, stay as they are.

    names: the fields of config.data that are flags.
    """

    def flag(found: re.Match[str]) -> str:
        if found[1] == "filters":
            return "--filters.*"
        return f"--{found[1]}" if found[1] in names else found[0]

    try:
        yield
    except ConfigError as error:
        raise ConfigError(re.sub(r"(?<![^\s(])data\.(\w+(?:\.\w+)*)(?![\w/])", flag, str(error))) from error
