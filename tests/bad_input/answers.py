"""What a command answers to bad input, in this process: the answer must be one line that names the cause."""

import contextlib
import dataclasses
import io
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from command import program
from command.flags import run_command


@dataclasses.dataclass(frozen=True)
class Row:
    """One bad input.

    Attributes:
      main: the command's `main`.
      arguments: its command line, without the program's name.
      names: what the error line must contain: a field, a flag or a file; one of several.
    """

    main: Callable[[], None]
    arguments: tuple[str, ...]
    names: tuple[str, ...]


def row(main: Callable[[], None], *arguments: object, names: str | Iterable[str]) -> Row:
    """Returns a Row."""
    return Row(main, tuple(map(str, arguments)), (names,) if isinstance(names, str) else tuple(names))


def wrong_answer(row: Row, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what is wrong with the answer to a row; "" if the answer is right.

    It is right if the command ends with a status that is not 0, and prints to standard error exactly one line,
    "error: ...", which contains one of `row.names`.
    """
    monkeypatch.setattr(sys, "argv", ["command", *row.arguments])
    # A thread for each failed command, which ends this process with that command's status when the tests are done.
    monkeypatch.setattr(program, "_limit_exit", lambda status: None)
    sys.modules.pop("config_config", None)  # the module of the last --config, which ml_collections would keep
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            run_command(row.main)
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            return f"traceback: {type(error).__name__}: {str(error)[:200]!r}"
    printed = err.getvalue()
    if status in (0, None):
        return f"accepted: {out.getvalue()[:100]!r}"
    if not printed.startswith("error: ") or len(printed.splitlines()) != 1 or "Traceback" in printed:
        return f"not one line: {printed[:300]!r}"
    if not any(name in printed for name in row.names):
        return f"does not name {' or '.join(row.names)}: {printed[:300]!r}"
    return ""


def check_rows(rows: Iterable[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails with every row whose answer is wrong."""
    rows = list(rows)
    wrong = [(row.arguments[-1:], answer) for row in rows if (answer := wrong_answer(row, monkeypatch))]
    listed = "\n".join(f"  {case}: {answer}" for case, answer in wrong)
    assert rows and not wrong, f"{len(wrong)} of {len(rows)} bad inputs are not answered in one line:\n{listed}"


def check_damaged(path: Path, kinds: Mapping[str, bytes | None], row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails with every kind of contents of the file `path`, None for no file, that is not answered in one line."""
    whole, wrong = path.read_bytes(), []
    for kind, contents in kinds.items():
        path.unlink() if contents is None else path.write_bytes(contents)
        if answer := wrong_answer(row, monkeypatch):
            wrong.append(f"  {path.name}: {kind}: {answer}")
        path.write_bytes(whole)
    path.unlink()
    path.mkdir()
    if answer := wrong_answer(row, monkeypatch):
        wrong.append(f"  {path.name}: a folder: {answer}")
    shutil.rmtree(path)
    path.write_bytes(whole)
    assert not wrong, "\n".join(wrong)
