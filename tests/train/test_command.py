"""The flags of a command: when help is printed."""

import subprocess
import sys

import pytest
from absl import flags

from train.command import parse_flags


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


@pytest.mark.parametrize("flush", [True, False])
def test_a_command_whose_reader_ends_first_ends_quietly(flush):
    program = f"""
import sys
from train.command import run_command
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
from train.command import run_command
def main():
    raise BrokenPipeError("a server")
run_command(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1 and b"BrokenPipeError: a server" in done.stderr
