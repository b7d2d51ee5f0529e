"""The project stays small: lines of code of the core and of each room, files of a room, lines of a file.

Code is lines without blanks, comments and docstrings. A bound that fails is a question: what can leave? A feature that
is worth more lines raises it, in the commit that adds them.
"""

import ast
import collections
import functools
import io
import pathlib
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# What a researcher reads to know what is trained, and how: README names it.
CORE = ("contract", "objectives", "models", "learners", "run/step.py", "train/loop.py")
CORE_CODE = 7_500
FILE_LINES = 450
LONG_FILES: dict[str, int] = {}
ROOM_FILES = 12
# Room -> the most lines of code, with its subpackages.
CODE = {
    "benchmarks": 1_189,
    "cloze": 361,
    "cluster": 393,
    "command": 395,
    "configs": 2_470,
    "contract": 445,
    "data": 4_662,
    "evaluation": 2_020,
    "experiment": 1_145,
    "files": 313,
    "generate": 1_021,
    "huggingface": 2_337,
    "learners": 860,
    "models": 1_706,
    "objectives": 4_061,
    "plan": 662,
    "run": 1_328,
    "show": 1_002,
    "studies": 3_413,
    "train": 1_092,
    "workdir": 841,
}
# Rooms, and packages in them, that have more files: a config, study, objective or benchmark is a file.
MORE_FILES = {
    "benchmarks": 14,
    "configs": 39,
    "configs/gym": 14,
    "configs/studies": 30,
    "configs/studies/gym": 15,
    "huggingface": 16,
    "models": 17,
    "objectives": 35,
    "studies": 18,
    "train": 20,
}


def code_lines(source: str) -> set[int]:
    """The numbers of the lines with code: without blank lines, comments and docstrings."""
    docstrings, lines = set(), set()
    for node in ast.walk(ast.parse(source)):
        has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if has_body and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


@functools.cache
def sources() -> dict[pathlib.Path, str]:
    files = sorted(path for room in CODE for path in (ROOT / room).rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}


@functools.cache
def lines() -> dict[pathlib.Path, int]:
    """The number of code lines of each file. All sessions of pytest import this module, and few need the numbers."""
    return {path: len(code_lines(source)) for path, source in sources().items()}


def test_every_room_has_a_bound():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert rooms == set(CODE)


def test_the_core_can_be_read_in_an_afternoon():
    parts = {part: sum(n for path, n in lines().items() if path.is_relative_to(part)) for part in CORE}
    assert all(parts.values()), "a part of the core has another name"
    assert sum(parts.values()) <= CORE_CODE, parts


@pytest.mark.parametrize("room", CODE)
def test_a_room_has_at_most_its_code_and_files(room):
    code = {str(path): n for path, n in lines().items() if path.parts[0] == room}
    assert sum(code.values()) <= CODE[room], f"{room}/ has {sum(code.values())} lines of code: {code}"
    folders = collections.Counter(path.parent.as_posix() for path in lines() if path.parts[0] == room)
    many = {name: n for name, n in folders.items() if n > MORE_FILES.get(name, ROOM_FILES)}
    assert not many, "files, with __init__.py: merge those that are read together"


def test_no_file_is_too_long_to_read():
    lengths = {path.as_posix(): source.count("\n") for path, source in sources().items()}
    assert {path: n for path, n in lengths.items() if n > LONG_FILES.get(path, FILE_LINES)} == {}
