"""The start and the end of every command: its flags, and errors in one line without a traceback.

A command defines its flags on a `flags.FlagValues()` of its own, so that several commands can be imported into one
process, and calls `parse_flags` first:

    _FLAGS = flags.FlagValues()
    _CONFIG = define_config(_FLAGS)

    def main() -> None:
        parse_flags(_FLAGS, __doc__)
        experiment = make_experiment(config_fields(_FLAGS))

    if __name__ == "__main__":
        run_command(main)
"""

import contextlib
import difflib
import itertools
import os
import pathlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from absl import flags
from ml_collections import ConfigDict, config_flags

from cluster.accelerators import skip_libtpu_without_tpu
from cluster.host_memory import keep_freed_memory
from command.flags_given import check_given_once
from command.overrides import check_tuples, unknown_field
from command.program import run_program
from contract.errors import ConfigError

T = TypeVar("T")

TRAINING_MEMORY = (
    "Raise train.grad_accum_steps or mesh.fsdp, or set model.remat='full'; python -m train.plan with this config and "
    "--topology finds a change that is sufficient"
)
_BASE_CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "base.py"
_SOME_CONFIG = "name one of configs/, as in --config=configs/ul2.py"


def run_command(main: Callable[[], None], *, memory_remedy: str = "") -> None:
    """Runs `main`, and exits as command.program.run_program does: after one line for errors of users and machines.

    memory_remedy: what to change in this command's flags or config where memory is too small.
    """
    # Deprecation warnings of Orbax and grain address their developers; a user cannot act on them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    skip_libtpu_without_tpu()
    keep_freed_memory()
    run_program(lambda: _with_devices(main), memory_remedy=memory_remedy)


def _with_devices(main: Callable[[], None]) -> None:
    """Runs `main`. Raises ConfigError where JAX cannot use the devices that JAX_PLATFORMS names."""
    try:
        main()
    except (RuntimeError, AssertionError) as error:
        raised_in = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        if raised_in != "jax._src.xla_bridge":
            raise
        platforms = os.environ.get("JAX_PLATFORMS")
        reason = " ".join(str(error).split()) or "there are none, or JAX is installed without their plugin"
        raise ConfigError(
            f"JAX cannot use the devices of {f'JAX_PLATFORMS={platforms}' if platforms else 'this machine'}: "
            f"{reason[:200]}: set JAX_PLATFORMS=cpu, or unset it to use what there is"
        ) from error


def define_config(flag_values: flags.FlagValues, argv: list[str] | None = None) -> flags.FlagHolder:
    """Defines --config, a config file with an optional preset. --config.a.b=value overrides a field of the file.

    argv: the command line that contains the overrides, sys.argv by default.
    """
    return config_flags.DEFINE_config_file(
        "config",
        help_string="Experiment: a file of configs/, as in configs/ul2.py or configs/ul2.py:base.",
        flag_values=flag_values,
        sys_argv=argv,
    )


def parse_flags(
    flag_values: flags.FlagValues,
    usage: str,
    argv: list[str] | None = None,
    *,
    positional: Callable[[str], T] | None = None,
) -> list[T]:
    """Parses the command line, sys.argv by default, into `flag_values`, and returns the other arguments.

    --help prints `usage`, the flags, and the fields of --config or of every config, and exits.

    positional: the type of the arguments that are not flags; None: the command takes no such arguments.

    Raises ConfigError, one line, for an invalid flag, an unexpected argument, an invalid config file or override.
    """
    argv = sys.argv if argv is None else argv
    flag_values.set_gnu_getopt()  # flags and other arguments in any order
    if _asks_for_help(argv, flag_values):
        print(f"{usage.strip()}\n\nFlags:\n{_flags_help(flag_values)}")
        if "config" in flag_values:
            print(f"\n{_config_help(argv)}")
        sys.exit(0)
    if "config" in flag_values:
        _check_config_file(argv)
    # A second call in one process starts from the defaults again, without the flags that overrides have defined.
    for name in [name for name in flag_values if name.startswith("config.")]:
        delattr(flag_values, name)
    flag_values.unparse_flags()
    # ml_collections imports each config file under this name, and keeps the attributes of the file before.
    sys.modules.pop("config_config", None)
    try:
        rest = flag_values(argv)
    except Exception as error:  # a config file is a program and can raise anything
        raise ConfigError(_one_line(error, argv)) from error
    check_given_once(flag_values)
    if any(name.startswith("config.") for name in flag_values):
        check_tuples(argv, config_overrides(flag_values))
    values = []
    for argument in rest[1:]:
        if positional is None:
            raise ConfigError(f"unexpected argument {argument!r}: flags are written --name=value")
        try:
            values.append(positional(argument))
        except ValueError as error:
            raise ConfigError(f"argument {argument!r} must be of type {positional.__name__}") from error
    return values


def config_fields(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the config, with overrides applied, as nested plain dicts. Raises ConfigError if --config is missing."""
    config = flag_values["config"].value
    if config is None and not flag_values["config"].present:
        raise ConfigError("--config is missing: for example --config=configs/ul2.py, or configs/ul2.py:base")
    if not isinstance(config, ConfigDict):
        name = config_name(flag_values)
        raise ConfigError(f"--config={name}: get_config() must return a ConfigDict, not {type(config).__name__}")
    return config.to_dict()


def config_overrides(flag_values: flags.FlagValues) -> dict[str, Any]:
    """The fields that the command line overrides, by their dotted names, such as {"data.inputs_length": 64}."""
    return dict(config_flags.get_override_values(flag_values["config"]))


def config_name(flag_values: flags.FlagValues) -> str:
    """Returns the value of --config as given: the config file and its preset."""
    return config_flags.get_config_filename(flag_values["config"])


def resolve(config: str, overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of `config`, a file with an optional preset, with `overrides`, as the command line reads them.

    overrides: {"objective.mask_rate": 0.4}. where: for messages. Raises ConfigError as a command with these flags does.
    """
    values = flags.FlagValues()
    argv = ["", f"--config={config}", *override_flags(overrides)]
    define_config(values, argv)
    try:
        parse_flags(values, "", argv)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return config_fields(values)


def override_flags(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as flags, such as "--config.objective.mask_rate=0.4"."""
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in overrides.items()}
    return [f"--config.{field}={value}" for field, value in values.items()]


def _asks_for_help(argv: list[str], flag_values: flags.FlagValues) -> bool:
    """Returns whether an argument is --help or -h, and not the value of the flag before it, as in --prompt -h."""

    def takes_a_value(argument: str) -> bool:
        name = argument.lstrip("-")
        return argument.startswith("-") and name in flag_values and not flag_values[name].boolean

    return any(
        argument in ("--help", "-help", "-h") and not takes_a_value(before)
        for before, argument in itertools.pairwise(argv)
    )


def _check_config_file(argv: list[str]) -> None:
    for path, colon, preset in (value.partition(":") for value in _config_arguments(argv)):
        if not os.path.isfile(path):
            stems = [file.stem for file in pathlib.Path("configs").glob("[!_]*.py")]
            near = difflib.get_close_matches(pathlib.Path(path).stem, stems, n=1)
            remedy = f"did you mean --config=configs/{near[0]}.py{colon}{preset}?" if near else _SOME_CONFIG
            raise ConfigError(f"--config={path} is not a file: {remedy}")


def _config_arguments(argv: list[str]) -> Iterator[str]:
    """Yields the values of --config. Raises ConfigError for an empty value, and if another flag follows."""
    for flag, following in zip(argv, [*argv[1:], ""], strict=True):
        match = re.fullmatch(r"--?config(=?)(.*)", flag, re.DOTALL)
        if match is None or (match[2] and not match[1]):  # another flag, such as --config.train.steps
            continue
        value = match[2] if match[1] else following
        if not value or (not match[1] and value.startswith("-")):
            raise ConfigError(f"--config has no value: {_SOME_CONFIG}")
        yield value


def _flags_help(flag_values: flags.FlagValues) -> str:
    lines = []
    for name in sorted(name for name in flag_values if not name.startswith("config.")):
        flag = flag_values[name]
        default = "" if flag.default is False or flag.default in (None, "") else f" Default: {flag.default}."
        lines.append(f"  --{name:<20} {flag.help}{default}")
    return "\n".join(lines)


def _config_help(argv: list[str]) -> str:
    """Returns the fields of the config that `argv` names, or those that all configs have, with their values."""
    _check_config_file(argv)
    given = [*_config_arguments(argv)]
    name = given[-1] if given else str(_BASE_CONFIG)
    try:
        fields = _file_fields(argv[0], name)
    except Exception as error:
        raise ConfigError(_one_line(error, argv)) from error
    heading = f"of {name}" if given else "with their defaults; --config=... --help prints those of a config"
    return "\n".join([f"Fields of the config, {heading}. configs/base.py describes each:", *_field_lines(fields)])


def _field_lines(fields: Mapping[str, Any], prefix: str = "  --config.") -> Iterator[str]:
    """Yields each field as it is written on the command line."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _field_lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={value!r}"


def _file_fields(program: str, name: str) -> dict[str, Any]:
    """Returns the fields of the config `name`, a file with an optional preset, without overrides."""
    flag_values, arguments = flags.FlagValues(), [program, f"--config={name}"]
    define_config(flag_values, argv=arguments)
    flag_values(arguments)
    return config_fields(flag_values)


def _one_line(error: Exception, argv: list[str]) -> str:
    missing = re.match(r"flag --(\w+)=None: Flag --\w+ must have a value other than None", str(error))
    if missing:
        return f"--{missing[1]} is missing: write --{missing[1]}=..."
    override = re.match(r"Unknown command line flag '(config\.[\w.]+)'", str(error))
    if override:
        return f"--{override[1]} needs --config: name the config that it changes, as in --config=configs/ul2.py"
    if "has no attribute 'get_config'" in str(error):
        return f"--config={next(_config_arguments(argv))} is no config: it has no function get_config()"
    if re.search(r"get_config\(\) takes 0 positional arguments", str(error)):
        name = next(_config_arguments(argv))
        return (
            f"--config={name} names a preset, and {name.partition(':')[0]} has none: remove :{name.partition(':')[2]}"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = "".join(f"--config={name}: " for name in itertools.islice(_config_arguments(argv), 1))
    if isinstance(error, AttributeError | KeyError):  # an override of a field that the config does not have
        with contextlib.suppress(Exception):  # where the file itself raised the error, it does so again
            message = unknown_field(argv, _file_fields(argv[0], next(_config_arguments(argv))))
            if message:
                return message
    if "Traceback" in str(error):
        return where + re.sub(r"^\w*(\.\w+)*Error: ", "", lines[-1])
    return ("" if isinstance(error, flags.Error) else where) + " ".join(lines or [type(error).__name__])
