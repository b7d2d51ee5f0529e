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
import importlib.util
import inspect
import itertools
import os
import pathlib
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from command.program import run_program
from contract.errors import STOPS, ConfigError, programs_of_users, text_of

TRAINING_MEMORY = (
    "Raise train.grad_accum_steps or mesh.fsdp, or set model.remat='full'; python -m train.plan with this config and "
    "--topology says whether that is sufficient"
)
_BASE_CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "base.py"
_EXPECTED = {  # what Python and absl say of a flag's value -> what the flag expects
    "invalid literal for int": "a whole number, such as 1000",
    "could not convert string to float": "a number, such as 0.1",
    "('Non-boolean argument": "True or False",
    "Failed to parse": "a group of fields: set one of them, as in --config.model.num_layers=2",
}
_SOME_CONFIG = "name one of configs/, as in --config=configs/ul2.py"
# What --same_model, and study(same_model=...), take from a config: all but the objective, its text and its windows.
_SAME_MODEL = re.compile(
    r"(model|optimizer|loss)\..*|precision|train\.(batch_size|ema_decay)"
    r"|data\.(inputs_length|targets_length|examples_per_row|packing)"
)
_CONFIG_HELP = "Experiment: a file of configs/, as in configs/ul2.py or configs/ul2.py:base."
_SAME_MODEL_HELP = (
    "Config whose model, optimizer, precision, loss options, batch size and lengths of rows replace --config's."
)


def run_command(main: Callable[[], None], *, memory_remedy: str = "") -> None:
    """Runs `main`, and exits as command.program.run_program does: after one line for errors of users and machines.

    memory_remedy: what to change in this command's flags or config where memory is too small.
    """
    # Deprecation warnings of Orbax and grain address their developers; a user cannot act on them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    from cluster.devices import skip_libtpu_without_tpu  # imports JAX, which some commands do not need

    skip_libtpu_without_tpu()
    run_program(lambda: _with_devices(main), memory_remedy=memory_remedy)


def _with_devices(main: Callable[[], None]) -> None:
    """Runs `main`. Raises ConfigError where JAX cannot use the devices that JAX_PLATFORMS names."""
    try:
        main()
    except (RuntimeError, AssertionError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if frame.f_globals["__name__"] != "jax._src.xla_bridge":
            raise
        reason = " ".join(str(error).split())[:200] or "there are none, or their plugin is missing"
        raise ConfigError(
            f"JAX cannot use the devices of JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {reason}: "
            "set JAX_PLATFORMS=cpu, or unset it to use what there is"
        ) from error


def define_config(
    flag_values: flags.FlagValues, argv: list[str] | None = None, *, same_model: bool = False
) -> flags.FlagHolder:
    """Defines --config, a config file with an optional preset. --config.a.b=value overrides a field of the file.

    Also defines --code (`define_code`).

    argv: the command line that contains the overrides, sys.argv by default. same_model: whether to define --same_model,
    a config whose model `config_fields` gives to that of --config.
    """
    define_code(flag_values)
    if same_model:
        flags.DEFINE_string("same_model", None, _SAME_MODEL_HELP, flag_values)
    options = {"help_string": _CONFIG_HELP, "flag_values": flag_values, "sys_argv": argv}
    return config_flags.DEFINE_config_file("config", **options)


def define_code(flag_values: flags.FlagValues) -> None:
    """Defines --code, a Python file that `parse_flags` executes: objectives and learners outside this repository."""
    flags.DEFINE_string("code", None, "Python file to execute: it registers your objective or learner.", flag_values)


def parse_flags(
    flag_values: flags.FlagValues, usage: str, argv: list[str] | None = None, *, positional: bool = False
) -> list[str]:
    """Parses the command line, sys.argv by default, into `flag_values`, and returns the other arguments.

    --help prints `usage`, the flags, and the fields of --config or of every config, and exits. The file of --code, if
    the command has this flag, is executed last.

    positional: whether the command takes arguments that are not flags.

    Raises ConfigError, one line, for an invalid flag, an unexpected argument, an invalid config file or override.
    """
    argv = sys.argv if argv is None else argv
    flag_values.set_gnu_getopt()  # flags and other arguments in any order
    if {"--help", "-help", "-h"} & set(argv[1:]):
        _print_help(usage, flag_values, argv)
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
    except STOPS:
        raise
    except BaseException as error:  # a config file is a program and can raise anything
        raise ConfigError(_one_line(error, argv)) from error
    for name in flag_values:
        flag = flag_values[name]
        if flag.present > 1 and not isinstance(flag, flags.MultiFlag):
            raise ConfigError(f"--{name} is given {flag.present} times: give it once")
    if any(name.startswith("config.") for name in flag_values):
        _check_tuples(argv, config_overrides(flag_values))
    if rest[1:] and not positional:
        raise ConfigError(f"unexpected argument {rest[1]!r}: flags are written --name=value")
    if "code" in flag_values and flag_values["code"].value is not None:
        execute_file(flag_values["code"].value, "--code")
    return rest[1:]


def _print_help(usage: str, flag_values: flags.FlagValues, argv: list[str]) -> NoReturn:
    print(f"{usage.strip()}\n\nFlags:\n{flag_values.get_help(prefix='  ', include_special_flags=False)}")
    if "config" in flag_values:
        print(f"\n{_config_help(argv)}")
    sys.stdout.flush()
    sys.exit(0)


def execute_file(path: str, flag: str) -> types.ModuleType:
    """Executes a Python file that a user names with `flag`, and returns its module.

    Raises ConfigError, one line, for a path that is no Python file, and for a file that cannot be executed.
    """
    if not path.endswith(".py") or not os.path.isfile(path):
        fault = "is not a Python file" if os.path.exists(path) else "does not exist"
        raise ConfigError(f"{flag}={path} {fault}: name a file that ends in .py")
    name = f"_executed_{pathlib.Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look up names
    with programs_of_users(f"{flag}={path} cannot be read"):
        spec.loader.exec_module(module)
    return module


def config_fields(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the config, with --same_model and overrides applied, as nested plain dicts.

    Raises ConfigError if --config is missing, or if --same_model is no config.
    """
    config = flag_values["config"].value
    if config is None and not flag_values["config"].present:
        raise ConfigError("--config is missing: for example --config=configs/ul2.py, or configs/ul2.py:base")
    if not isinstance(config, ConfigDict):
        name = config_name(flag_values)
        raise ConfigError(f"--config={name}: get_config() must return a ConfigDict, not {type(config).__name__}")
    same = flag_values["same_model"].value if "same_model" in flag_values else None
    if same is None:
        return config.to_dict()
    try:
        taken = same_model_fields(same, "")
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix(": ").replace("--config", "--same_model")) from None
    return resolve(config_name(flag_values), taken | config_overrides(flag_values), f"--same_model={same}")


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


def same_model_fields(config: str, where: str) -> dict[str, Any]:
    """Returns the fields of `config` that runs with the same model share, by dotted name. where: for messages."""
    return {name: value for name, value in _leaves(resolve(config, {}, where)) if _SAME_MODEL.fullmatch(name)}


def override_flags(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as flags, such as "--config.objective.mask_rate=0.4"."""
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in overrides.items()}
    return [f"--config.{field}={value}" for field, value in values.items()]


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


def field_descriptions() -> dict[str, str]:
    """Returns the dotted name of each field of configs/base.py -> what it is, one line, from the comment there."""
    found: dict[str, str] = {}
    paragraph: list[str] = []  # the last one of the comment before a field
    for line in _BASE_CONFIG.read_text(encoding="utf-8").splitlines():
        comment = re.fullmatch(r"\s*#(.*)", line)
        field = re.match(r"(?:    config|OPTIONAL)\.([\w.]+) = .*?(?:  # (.*))?$", line)
        if comment:
            paragraph = [*paragraph, comment[1].strip()] if comment[1].strip() else []
        else:
            if field:
                text = field[2] or " ".join(paragraph)
                found.setdefault(field[1], textwrap.shorten(text, 110, placeholder=" ..."))
            paragraph = []
    return found


def objective_descriptions(fields: Mapping[str, Any], prefix: str = "objective") -> dict[str, str]:
    """Returns the dotted name of each field of an objective -> what it is, one line, from its class's docstring.

    fields: of the objective, with those of its denoisers, if any.
    """
    from objectives import OBJECTIVES  # takes a tenth of a second, and --help alone needs it

    found = {}
    for cls in reversed(getattr(OBJECTIVES.get(str(fields.get("name"))), "__mro__", ())):
        for names, text in re.findall(r"^(\w+(?:, \w+)*): (.*(?:\n .*)*)", inspect.getdoc(cls) or "", re.MULTILINE):
            described = textwrap.shorten(text, 110, placeholder=" ...")
            found |= {f"{prefix}.{name}": described for name in names.split(", ")}
    for name, group in fields.items():
        if isinstance(group, Mapping):
            found |= objective_descriptions(group, f"{prefix}.{name}")
    return found


def _check_config_file(argv: list[str]) -> None:
    for path, colon, preset in (value.partition(":") for value in _config_arguments(argv)):
        if not os.path.isfile(path):
            stems = [file.stem for file in pathlib.Path("configs").glob("[!_]*.py")]
            near = difflib.get_close_matches(pathlib.Path(path).stem, stems, n=1)
            elsewhere = f"the path is relative to this folder; cloze's configs are in {_BASE_CONFIG.parent}"
            other = _SOME_CONFIG if os.path.isdir("configs") else elsewhere
            remedy = f"did you mean --config=configs/{near[0]}.py{colon}{preset}?" if near else other
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


def _config_help(argv: list[str]) -> str:
    """Returns the fields of the config that `argv` names, or those that all configs have, with their values."""
    _check_config_file(argv)
    given = [*_config_arguments(argv)]
    name = given[-1] if given else str(_BASE_CONFIG)
    try:
        fields = _file_fields(argv[0], name)
    except STOPS:
        raise
    except BaseException as error:
        raise ConfigError(_one_line(error, argv)) from error
    heading = f"of {name}" if given else "with their defaults; --config=... --help prints those of a config"
    described = field_descriptions() | objective_descriptions(fields.get("objective", {}))
    lines = [
        f"  --config.{field}={value!r}" + f"  # {described.get(field)}" * (field in described)
        for field, value in _leaves(fields)
    ]
    where = "configs/base.py and objectives/ have their whole descriptions"
    return "\n".join([f"Fields of the config, {heading}. {where}:", *lines])


def _leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted name and the value of each field that is not a group."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _file_fields(program: str, name: str) -> dict[str, Any]:
    """Returns the fields of the config `name`, a file with an optional preset, without overrides."""
    flag_values, arguments = flags.FlagValues(), [program, f"--config={name}"]
    define_config(flag_values, argv=arguments)
    flag_values(arguments)
    return config_fields(flag_values)


def _one_line(error: BaseException, argv: list[str]) -> str:
    said = text_of(error)
    missing = re.match(r"flag --(\w+)=None: Flag --\w+ must have a value other than None", said)
    if missing:
        return f"--{missing[1]} is missing: write --{missing[1]}=..."
    wrong = re.match(rf"flag (--[\w.]+=.*?): ({'|'.join(map(re.escape, _EXPECTED))})", said, re.DOTALL)
    if wrong:
        return f"{' '.join(wrong[1].split())} must be {_EXPECTED[wrong[2]]}"
    override = re.match(r"Unknown command line flag '(config\.[\w.]+)'", said)
    if override:
        return f"--{override[1]} needs --config: name the config that it changes, as in --config=configs/ul2.py"
    field = re.match(r"Unknown command line flag '(\w+\.[\w.]+)'", said)
    if field and any("config" in name for name in argv[1:]):
        return f"unknown flag --{field[1]}: a field of the config is written --config.{field[1]}=..."
    name, _, preset = next(_config_arguments(argv), "").partition(":")
    if "has no attribute 'get_config'" in said:
        return f"--config={name} is no config: it has no function get_config()"
    if "get_config() takes 0 positional arguments" in said:
        return f"--config={name}:{preset} names a preset, and {name} has none: remove :{preset}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if isinstance(error, SystemExit):
        lines = [f"it ends the program, with the status {said or 0}"]
    where = "".join(f"--config={name}: " for name in itertools.islice(_config_arguments(argv), 1))
    if isinstance(error, AttributeError | KeyError):  # an override of a field that the config does not have
        with contextlib.suppress(Exception):  # where the file itself raised the error, it does so again
            message = _unknown_field(argv, _file_fields(argv[0], next(_config_arguments(argv))))
            if message:
                return message
    if "Traceback" in said:
        return where + re.sub(r"^\w*(\.\w+)*Error: ", "", lines[-1])
    return ("" if isinstance(error, flags.Error) else where) + " ".join(lines or [type(error).__name__])


def _unknown_field(argv: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Returns a message that names the first override of a field that `fields` lacks; "" if there is none.

    The message has the field with the nearest name. argv: the command line. fields: the config without overrides.
    """
    names = [name for name, _ in _leaves(fields)]
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match and match[1] not in names:
            section, _, field = match[1].rpartition(".")
            here = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
            near = [here[close] for close in difflib.get_close_matches(field, here, n=1)]
            near = near or [name for name in names if name.rpartition(".")[2] == field]
            if section == "objective":
                other = "this objective has none; start from another's config, with --same_model=... for this model"
            else:
                near = near or difflib.get_close_matches(match[1], names, n=1)
                other = "--help prints the fields of this config"
            remedy = f"did you mean {near[0]}?" if near else other
            if re.match(r"objective\.(.*\.)?(schedule$|begin_step$|end_step$|final_|phase_)", match[1]):
                remedy = "this config has no such schedule: write it in a config file (docs/objectives.md, Schedules)"
            return f"unknown config field in {argument}: {remedy}"
    return ""


def _check_tuples(argv: Sequence[str], overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for an override of a tuple that was read as one text, such as "('a'" or "a,b".

    One word is a tuple of that word, as ml_collections reads it: "[R]", but not "[R],[S]".

    argv: the command line. overrides: its fields and values, as parsed.
    """
    given = {text for argument in argv for text in (argument, argument.partition("=")[2])}
    for name, value in overrides.items():
        for item in value if isinstance(value, tuple) else ():
            if isinstance(item, str) and item in given:
                is_balanced = all(item.count(left) == item.count(right) for left, right in ("()", "[]", "{}"))
                if not is_balanced or re.search(r"[,'\"\s]", item):
                    remedy = """write it as in "('a', 'b')" or "('a',)\""""
                    raise ConfigError(f"--config.{name}={item} is not a tuple: {remedy}")
