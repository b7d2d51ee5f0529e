"""Files that are replaced by something else, for tests of what reads them."""

import shutil

from tests.bad_input.answers import row, wrong_answer

GARBAGE = bytes(range(256)) * 8
ANY = {
    "missing": None,
    "empty": b"",
    "half": ...,
    "garbage": GARBAGE,
    "a folder": "folder",
}
JSON = ANY | {
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "a text": b'"text"',
    "a number": b"5",
    "NaN": b"NaN",
    "not UTF-8": b'{"a": "\xff"}',
    "nested too deep": b"[" * 100_000,
    "a number too long": b'{"a": ' + b"1" * 5000 + b"}",
    "two values": b"{} {}",
}
LINES = {name: value for name, value in JSON.items() if name not in ("missing", "empty", "half", "two values")}


def damage(path, contents):
    """Replaces a file by `contents`: bytes, "folder", ... for its first half, or None for no file."""
    whole = path.read_bytes()
    path.unlink()
    if contents == "folder":
        path.mkdir()
    elif contents is not None:
        path.write_bytes(whole[: len(whole) // 2] if contents is ... else contents)
    return whole


def check_damaged(path, kinds, main, arguments, names, monkeypatch, may_be_unread=()):
    """Fails with every kind of damage to the file `path` that the command does not answer as it should."""
    wrong = []
    for kind, contents in kinds.items():
        whole = damage(path, contents)
        answer = wrong_answer(row(kind, main, *arguments, names=names), monkeypatch)
        if answer and not (kind in may_be_unread and answer.startswith("accepted")):
            wrong.append((kind, answer))
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)
    listed = "\n".join(f"  {path.name}: {kind}: {answer}" for kind, answer in wrong)
    assert not wrong, f"{len(wrong)} of {len(kinds)} damaged files are not answered in one line:\n{listed}"
