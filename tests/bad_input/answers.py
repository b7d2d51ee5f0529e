"""What a command answers to bad input, in this process: the answer must be one line that names the cause.

A row of a table is (what is wrong, how the command is started, what its line must name).
"""

import contextlib
import dataclasses
import io
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator

import pytest

from command import program
from command.flags import run_command

SECONDS = 5.0  # the most that an answer may take, on a machine with other work


@dataclasses.dataclass(frozen=True)
class Row:
    """One bad input.

    Attributes:
      case: what is wrong, for the list of failures.
      main: the command's `main`.
      arguments: its command line, without the program's name.
      names: what the error line must contain: a field, a flag or a file; one of several.
    """

    case: str
    main: Callable[[], None]
    arguments: tuple[str, ...]
    names: tuple[str, ...]


def row(case: str, main: Callable[[], None], *arguments: object, names: str | Iterable[str]) -> Row:
    """Returns a Row."""
    return Row(case, main, tuple(map(str, arguments)), (names,) if isinstance(names, str) else tuple(names))


def wrong_answer(row: Row, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what is wrong with the answer to a row; "" if the answer is right.

    It is right if the command ends within SECONDS with a status that is not 0, and prints to standard error exactly one
    line, "error: ...", which contains one of `row.names`.
    """
    monkeypatch.setattr(sys, "argv", ["command", *row.arguments])
    # A thread for each failed command, which ends this process with that command's status when the tests are done.
    monkeypatch.setattr(program, "_limit_exit", lambda status: None)
    sys.modules.pop("config_config", None)  # the module of the last --config, which ml_collections would keep
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            with _stopped_after(SECONDS):
                run_command(row.main)
            status = 0
        except _TooLong:
            return f"takes more than {SECONDS} s"
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


class _TooLong(BaseException):
    """Raised in a command that takes more than its time; no `except Exception` catches this class."""


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raises _TooLong in this context after so many seconds."""

    def stop(*_):
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_rows(rows: Iterable[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails with every row whose answer is wrong."""
    rows = list(rows)
    assert rows
    wrong = [(row.case, answer) for row in rows if (answer := wrong_answer(row, monkeypatch))]
    listed = "\n".join(f"  {case}: {answer}" for case, answer in wrong)
    assert not wrong, f"{len(wrong)} of {len(rows)} bad inputs are not answered in one line that names them:\n{listed}"
