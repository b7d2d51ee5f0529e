"""The flags of a command: when help is printed."""

import subprocess
import sys

import pytest
from absl import flags

from command.flags import define_config, parse_flags
from contract.errors import ConfigError
from tests.make_checkpoint_fixture import ROOT


def flag_values():
    values = flags.FlagValues()
    flags.DEFINE_string("prompt", None, "A text.", values)
    flags.DEFINE_bool("all", False, "Everything.", values)
    return values


@pytest.mark.parametrize(
    "arguments", [["-h"], ["--help"], ["--prompt=x", "-h"], ["--all", "-h"], ["--prompt", "x", "-h"]]
)
def test_help_is_printed_where_it_is_asked_for(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        parse_flags(flag_values(), "Usage.", ["command", *arguments])
    assert end.value.code == 0 and "--prompt" in capsys.readouterr().out


def test_help_as_the_value_of_a_flag_is_a_value(capsys):
    values = flag_values()
    parse_flags(values, "Usage.", ["command", "--prompt", "-h"])
    assert values["prompt"].value == "-h" and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.data.input_length=8"], "--config.data.input_length=8: did you mean data.inputs_length?"),
        (["--config.inputs_length=8"], "--config.inputs_length=8: did you mean data.inputs_length?"),
        (["--config.optimiser.b1=0.5"], "--config.optimiser.b1=0.5: did you mean optimizer?"),
        (
            ["--config.data.sources.a.source=jsonl"],
            "--config.data.sources.a.source=jsonl: this config has no corpus 'a'; name corpora in a config, by "
            "base.use_corpora (docs/data.md)",
        ),
        (["--config.seed.x=1"], "--config.seed.x=1: seed has no fields"),
        (["--config.objective.noise_density=0.3"], "this field, objective.denoisers.r1.noise_density, objective"),
        (["--config.seed=1", "--config.seed=2"], "--config.seed is given 2 times: give it once"),
        (["--config.data.mode_tokens=('a'"], "--config.data.mode_tokens=('a' is not a tuple: write it as in"),
        (["--config.data.mode_tokens=[R],[S]"], "--config.data.mode_tokens=[R],[S] is not a tuple: write it as in"),
        (["--config.optimizer.no_decay=norm,bias"], "--config.optimizer.no_decay=norm,bias is not a tuple"),
        (["--config.data.mode_tokens=a)"], "--config.data.mode_tokens=a) is not a tuple"),
        (["--config.data.mode_tokens=(a, b"], "Error while parsing string: (a, b as tuple"),
    ],
)
def test_overrides_that_cannot_be_meant(arguments, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    values, argv = flags.FlagValues(), ["command", "--config=configs/ul2.py", *arguments]
    define_config(values, argv=argv)
    with pytest.raises(ConfigError) as error:
        parse_flags(values, "Usage.", argv)
    assert message in str(error.value)


def test_one_word_is_a_tuple(monkeypatch):
    monkeypatch.chdir(ROOT)
    values, argv = flags.FlagValues(), ["command", "--config=configs/ul2.py", "--config.data.mode_tokens=[R]"]
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)
    assert values["config"].value.data.mode_tokens == ("[R]",)


def test_a_file_without_get_config_is_no_config_also_after_another_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("configs/ul2.py", "configs/recipes.py"):
        values, argv = flags.FlagValues(), ["command", f"--config={name}"]
        define_config(values, argv=argv)
        if name == "configs/ul2.py":
            parse_flags(values, "Usage.", argv)
    with pytest.raises(ConfigError, match=r"^--config=configs/recipes.py is no config: it has no function get_config"):
        parse_flags(values, "Usage.", argv)


def test_values_of_a_list_may_be_given_one_by_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    argv = ["command", "--config=configs/ul2.py", *["--config.train.trackers=wandb", "--config.train.trackers=trackio"]]
    values = flags.FlagValues()
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)
    assert values["config"].value.train.trackers == ("wandb", "trackio")


@pytest.mark.parametrize("flush", [True, False])
def test_a_command_whose_reader_ends_first_ends_quietly(flush):
    program = f"""
import sys
from command.flags import run_command
def main():
    sys.stdin.read()
    print("a line", flush={flush})
run_command(main)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b"" and process.wait() == 141


def test_the_broken_pipe_of_a_connection_is_not_hidden():
    program = """
from command.flags import run_command
def main():
    raise BrokenPipeError("a server")
run_command(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1 and b"BrokenPipeError: a server" in done.stderr


def parsed_with_config(*arguments):
    values = flags.FlagValues()
    argv = ["command", *arguments]
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [([], "--config.train.steps=600"), (["--config=tests/small_config.py"], "--config.train.steps=2")],
)
def test_help_lists_the_fields_of_the_config(arguments, line, capsys):
    with pytest.raises(SystemExit):
        parsed_with_config(*arguments, "--help")
    assert f"  {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--config="], ["--config"], ["--config", "--workdir=x"]])
def test_another_flag_is_not_the_value_of_config(arguments):
    with pytest.raises(ConfigError, match="--config has no value: name one of configs/"):
        parsed_with_config(*arguments)


def test_a_preset_of_a_config_without_presets_is_named():
    with pytest.raises(ConfigError, match=r"--config=configs/base.py:x names a preset, .* has none: remove :x"):
        parsed_with_config("--config=configs/base.py:x")
