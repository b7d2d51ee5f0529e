"""Applies the files and changes that a guide prints to a copy of the packages, for the tests of guides."""

import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"))


def copy_with_changes(guide: str, folder: pathlib.Path) -> list[str]:
    """Copies the packages into `folder`, applies what docs/<guide>.md prints, and returns the changed files.

    A file is printed as `path` and a Python block, a change as a diff whose first line names the file. In a diff " ..."
    skips lines. Raises ValueError for a diff that does not fit its file.
    """
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "docs" / f"{guide}.md").read_text()
    files = re.findall(r"`(\w+(?:/\w+)*\.py)`\n\n```python\n(.*?)```", text, re.DOTALL)
    for path, source in files:
        (folder / path).write_text(source)
    diffs = re.findall(r"```diff\n # (\S+)\n(.*?)```", text, re.DOTALL)
    for path, diff in diffs:
        file = folder / path
        file.write_text(apply_diff(file.read_text(), diff, path))
    return [path for path, _ in (*files, *diffs)]


def apply_diff(source: str, diff: str, path: str) -> str:
    """Returns `source` with the change of a diff, whose lines follow each other in `source` except at " ..."."""
    lines, position = source.split("\n"), None
    for line in diff.rstrip("\n").split("\n"):
        mark, text = line[:1], line[1:]
        if mark == "+":
            if position is None:  # before the first line that the diff shows
                shown = next(one[1:] for one in diff.split("\n") if one[:1] in (" ", "-"))
                position = lines.index(shown)
            lines.insert(position, text)
            position += 1
        elif text.strip() == "...":
            position = lines.index("}", position)
        else:
            at = lines.index(text, position or 0)
            if position not in (None, at):
                raise ValueError(f"{path}: {text!r} does not follow the line before it")
            if mark == "-":
                del lines[at]
            position = at + (mark == " ")
    return "\n".join(lines)
