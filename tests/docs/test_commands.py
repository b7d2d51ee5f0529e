"""The commands in docs are accepted: their flags and config fields exist, and their configs are valid."""

import functools
import importlib
import importlib.util
import pathlib
import re
import shlex

import pytest

from command.flags import resolve
from experiment.experiment import make_experiment

ROOT = pathlib.Path(__file__).parents[2]
PLACEHOLDERS = ("configs/OTHER.py", "...")  # in place of a config
# What the guides add: their commands are accepted once the guide has been followed.
OF_GUIDES = ("every_nth", "repeat_text", "squared_relu", "output_norm")
# Values that exist on the reader's machine alone, such as a bucket, each with one that every machine has.
ON_THIS_MACHINE = {"data.tokenizer": "byte", "data.cache_dir": "stores"}


def commands():
    """Yields (page, words) of each command of this project in an indented or fenced block of a page."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        for line in page.read_text().replace("\\\n", " ").split("\n"):
            if re.match(r"(    )?python -m (train|data)\.", line) and not any(name in line for name in OF_GUIDES):
                yield page.stem, shlex.split(line, comments=True)


# Configs that a page prints whole, for the commands that name them.
PRINTED = re.compile(r"`(\w+\.py)`\n\n```python\n(.*?)```", re.DOTALL)
OF_PAGES = dict(PRINTED.findall((ROOT / "docs" / "data.md").read_text()))

COMMANDS = {}  # page -> its commands
for _page, _words in commands():
    COMMANDS.setdefault(_page, []).append(_words)


@functools.cache
def check_config(path, config, overrides):
    """Raises where no experiment can be made of a config file. overrides: pairs of a field and its value."""
    make_experiment(resolve(str(path), dict(overrides), config))


def check(words, folder):
    """Raises where a flag does not exist or the config is not valid. folder: for the configs that a page prints."""
    module, *arguments = words[2:]
    if "..." in arguments:
        return  # a part of a command
    if importlib.util.find_spec(module).submodule_search_locations is not None:
        module += ".__main__"
    names = [argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--")]
    known = getattr(importlib.import_module(module), "_FLAGS", None)
    if known is not None:
        assert [name for name in names if not name.startswith("config.") and name not in known] == []
    values = {k: v for k, _, v in (argument[2:].partition("=") for argument in arguments if argument.startswith("--"))}
    config = values.get("config", "")
    if config in PLACEHOLDERS:
        return
    if config and module not in ("studies.__main__", "plan.__main__"):
        overrides = {name.removeprefix("config."): value for name, value in values.items() if "config." in name}
        overrides |= {name: value for name, value in ON_THIS_MACHINE.items() if name in overrides}
        path = ROOT / config
        if config in OF_PAGES:
            path = folder / config
            path.write_text(OF_PAGES[config])
        check_config(path, config, tuple(overrides.items()))


def test_there_are_commands():
    assert sum(map(len, COMMANDS.values())) > 40


@pytest.mark.parametrize("page", COMMANDS)
def test_flags_exist_and_the_config_is_valid(page, tmp_path):
    for words in COMMANDS[page]:
        try:
            check(words, tmp_path)
        except Exception as error:
            error.add_note(f"docs/{page}.md: {shlex.join(words)}")
            raise
