"""How the programs start and end: errors of the user's in one line, without a traceback."""

import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from absl import flags

from contract.errors import ConfigError
from train.host_memory import keep_freed_memory


def run_command(main: Callable[[], None]) -> None:
    """Runs `main` and ends the program: status 0, or 1 after a ConfigError's line on stderr, or 130 after Ctrl-C.

    Memory that a device has not is the user's to mend as well: one line, with what to change.
    """
    # Orbax and grain tell developers about coming changes in libraries; a user cannot act on them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    keep_freed_memory()
    try:
        main()
    except ConfigError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:  # jax.errors.JaxRuntimeError is one; jax itself is not loaded here
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail(_too_little_memory(str(error)))


def parse_config_flags(
    argv: list[str], config: flags.FlagHolder, flag_values: flags.FlagValues = flags.FLAGS
) -> dict[str, Any]:
    """Parses the flags of `flag_values`, `config` of `DEFINE_config_file` among them; returns the config as plain
    nested dicts.

    Raises ConfigError, one line, for whatever the command line, the config file or an override has wrong.
    """
    _check_config_file(argv)
    try:
        rest = flag_values(argv)
        fields = None if config.value is None else config.value.to_dict()
    except Exception as error:  # a config file is a program: it can raise anything
        raise ConfigError(_one_line(error, argv)) from error
    if len(rest) > 1:
        raise ConfigError(f"unexpected argument {rest[1]!r}: flags are written --name=value")
    if fields is None:
        raise ConfigError("--config is missing: for example --config=configs/ul2.py, or configs/ul2.py:base")
    return fields


def fail(message: str) -> None:
    """Prints `message` as the one line of an error and ends the program with status 1."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


def _too_little_memory(error: str) -> str:
    reason = error.partition("RESOURCE_EXHAUSTED")[2].strip(": ").partition("\n")[0].rstrip(". ")
    return (
        f"a device has too little memory: {reason}. Raise train.grad_accum_steps or mesh.fsdp, or set model.remat: "
        "python -m train.plan with this config and --topology says which of them makes it fit"
    )


def _check_config_file(argv: list[str]) -> None:
    for flag, value in zip(argv, [*argv[1:], ""], strict=True):
        if flag == "--config" or flag.startswith("--config="):
            path = (flag.partition("=")[2] or value).partition(":")[0]
            if not os.path.isfile(path):
                raise ConfigError(f"--config={path} is not a file: name one of configs/, as in --config=configs/ul2.py")


def _one_line(error: Exception, argv: list[str]) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AttributeError | KeyError):  # an override of a field that the config does not have
        text = str(error).replace("\\'", "'")  # a KeyError inside an AttributeError quotes its quotes
        unknown = re.search(r"'(\w+)'|\"(\w+)\"", text)
        near = re.search(r'Did you mean "(\w+)"', text)
        name = (unknown[1] or unknown[2]) if unknown else ""
        given = [flag for flag in argv if name and re.match(rf"--config\.(\w+\.)*{name}\b", flag)]
        if given:
            return f"unknown config field in {given[0]}" + (f": did you mean {near[1]}?" if near else "")
    if "Traceback" in str(error):
        return re.sub(r"^\w*(\.\w+)*Error: ", "", lines[-1])
    return " ".join(lines)
