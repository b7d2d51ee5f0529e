"""The flags of a command: when help is printed."""

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
