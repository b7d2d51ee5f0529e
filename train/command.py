"""How the programs start and end: errors of the user's in one line, without a traceback."""

import re
import sys
import warnings
from collections.abc import Callable

from absl import flags

from objectives.errors import ConfigError


def run_command(main: Callable[[], None]) -> None:
    """Runs `main` and ends the program: status 0, or 1 after a ConfigError's line on stderr, or 130 after Ctrl-C."""
    # Orbax and grain tell developers about coming changes in libraries; a user cannot act on them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        main()
    except ConfigError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def parse_flags(argv: list[str]) -> None:
    """absl's flags from the command line. What they raise for bad values, of --config too, becomes a ConfigError."""
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        raise ConfigError(_one_line(error)) from error
    except Exception as error:  # whatever a config file raised, or an override that it does not have
        raise ConfigError(_one_line(error)) from error
    if len(rest) > 1:
        raise ConfigError(f"unexpected argument {rest[1]!r}: flags are written --name=value")


def fail(message: str) -> None:
    """Prints `message` as the one line of an error and ends the program with status 1."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Error whilst parsing config file" in str(error) or "Traceback" in str(error):
        return re.sub(r"^\w*(\.\w+)*Error: ", "", lines[-1])
    return " ".join(lines)
