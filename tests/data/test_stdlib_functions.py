"""Prompts and responses from the standard library's functions, by hand and for a whole package."""

import inspect
import json
import shutil
import textwrap
from pathlib import Path

import pytest

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.raw import Skipped
from data.sources.stdlib_functions import documented_functions
from tests.data.corpus import corpus_config

MODULE = '''\
"""A module's docstring is no function's."""
\x0c
class C:
    """Nor a class's."""

    @property
    async def f(self,
                x):
        """Says f.

        Twice.
        """
        # why
        def inside():
            """Not on its own."""
            return 1

        return "\\n"
    def bare(self):
        return 2


if True:
    def g(): "one line"; return 3
    def only():
        """Nothing follows."""
    def h():
        "h"

        return 4
'''


def test_functions_by_hand():
    assert list(documented_functions(MODULE)) == [
        (
            'async def f(self,\n            x):\n    """Says f.\n\n    Twice.\n    """\n',
            '    # why\n    def inside():\n        """Not on its own."""\n        return 1\n\n    return "\\n"\n',
        ),
        ('def h():\n    "h"\n', "\n    return 4\n"),
    ]


def test_line_ends_of_windows():
    assert list(documented_functions(MODULE.replace("\n", "\r\n"))) == list(documented_functions(MODULE))


def test_a_package_of_the_library(tmp_path, monkeypatch):
    """Prompt and response together are the source that `inspect` finds, without its indentation."""
    shutil.copytree(Path(json.__file__).parent, tmp_path / "library" / "json")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "library")})
    corpus = corpus_config(tmp_path, source="stdlib_functions", path="")
    documents = list(open_source(corpus).documents(Skipped()))
    assert {document.label for document in documents} == {"json"}
    texts = {(document.name, document.prompt + document.text) for document in documents}
    for function in (json.dumps, json.decoder.JSONDecoder.raw_decode, json.encoder.JSONEncoder.iterencode):
        name = f"json/{Path(inspect.getfile(function)).name}"
        assert (name, textwrap.dedent(inspect.getsource(function))) in texts
    assert all(document.prompt.strip() and document.text.strip() for document in documents) and len(documents) > 10


def test_a_file_that_is_not_python_is_an_error_or_skipped(tmp_path, monkeypatch):
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "good.py").write_text(MODULE)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"bad\.py is not Python \(line 1: "):
        list(open_source(corpus_config(tmp_path, source="stdlib_functions", path="")).documents(Skipped()))
    skipped = Skipped()
    corpus = corpus_config(tmp_path, source="stdlib_functions", path="", on_unreadable="skip")
    assert len(list(open_source(corpus).documents(skipped))) == 2 and len(skipped.files) == 1
