"""What runs between a command and its first update: the functions that a reader of the whole path would read."""

import ast
import collections
import json
import pathlib
import subprocess
import sys

import pytest

from tests.test_size import code_lines

ROOT = pathlib.Path(__file__).parent.parent
MOST_FILES, MOST_LINES = 86, 4_948
# Trains until the first line of training metrics, and prints where the functions that were called begin.
PROGRAM = """
import json, sys, threading

called = set()

def record(frame, event, _):
    if event == "call":
        called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

threading.setprofile(record)
sys.setprofile(record)
from train import display, main

class Reported(BaseException):
    pass

def report(*_):
    raise Reported

display.Display.train = report
try:
    main.main()
except Reported:
    sys.setprofile(None)
print(json.dumps(sorted(called)))
"""


def executed_lines(path: pathlib.Path, first_lines: set[int]) -> int:
    """The code lines of the functions of a file that begin on these lines."""
    source = path.read_text(encoding="utf-8")
    executed: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first = min(part.lineno for part in [node, *node.decorator_list])
            if first in first_lines:
                executed.update(range(first, node.end_lineno + 1))
    return len(executed & code_lines(source))


@pytest.mark.slow
def test_the_path_to_the_first_update_does_not_grow(corpus, tmp_path):
    text = ["--config.data.source=text", f"--config.data.path={corpus / 'text'}", "--config.train.log_every=1"]
    folders = [f"--config.data.cache_dir={corpus / 'cache'}", f"--workdir={tmp_path / 'run'}"]
    command = [sys.executable, "-c", PROGRAM, "--config=configs/ul2.py", *text, *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first_lines = collections.defaultdict(set)
    for name, line in json.loads(done.stdout.splitlines()[-1]):
        if name.startswith(f"{ROOT}/"):
            first_lines[pathlib.Path(name)].add(line)
    lines = {path: executed_lines(path, of_file) for path, of_file in first_lines.items()}
    lines = {path.relative_to(ROOT).as_posix(): count for path, count in lines.items() if count}
    assert len(lines) <= MOST_FILES and sum(lines.values()) <= MOST_LINES, lines
