"""What a command answers to bad input, in this process: the answer must be one line that names the cause."""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.in_process import run_here


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


def wrong_answer(row: Row) -> str:
    """Returns what is wrong with the answer to a row; "" if the answer is right.

    It is right if the command ends with a status that is not 0, and prints to standard error exactly one line,
    "error: ...", which contains one of `row.names`.
    """
    try:
        status, out, printed = run_here(row.main, *row.arguments)
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {str(error)[:200]!r}"
    if status == 0:
        return f"accepted: {out[:100]!r}"
    if not printed.startswith("error: ") or len(printed.splitlines()) != 1 or "Traceback" in printed:
        return f"not one line: {printed[:300]!r}"
    if not any(name in printed for name in row.names):
        return f"does not name {' or '.join(row.names)}: {printed[:300]!r}"
    return ""


def check_rows(rows: Iterable[Row]) -> None:
    """Fails with every row whose answer is wrong."""
    rows = list(rows)
    wrong = [(row.arguments[-1:], answer) for row in rows if (answer := wrong_answer(row))]
    listed = "\n".join(f"  {case}: {answer}" for case, answer in wrong)
    assert rows and not wrong, f"{len(wrong)} of {len(rows)} bad inputs are not answered in one line:\n{listed}"


def check_damaged(path: Path, kinds: Mapping[str, bytes | None], row: Row) -> None:
    """Fails with every kind of contents of the file `path`, None for no file, that is not answered in one line."""
    whole, wrong = path.read_bytes(), []
    for kind, contents in kinds.items():
        path.unlink() if contents is None else path.write_bytes(contents)
        if answer := wrong_answer(row):
            wrong.append(f"  {path.name}: {kind}: {answer}")
        path.write_bytes(whole)
    path.unlink()
    path.mkdir()
    if answer := wrong_answer(row):
        wrong.append(f"  {path.name}: a folder: {answer}")
    shutil.rmtree(path)
    path.write_bytes(whole)
    assert not wrong, "\n".join(wrong)
