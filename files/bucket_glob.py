"""Globs in buckets: they name the objects that the same globs name on a disk with the same files."""

import fnmatch
import glob
import re
from collections.abc import Iterable, Mapping, Sequence


def find_objects(pattern: str, folder: str, keys: Sequence[str]) -> list[str]:
    """Returns those of `keys` that a glob names, sorted.

    These are the keys that glob.glob(pattern, recursive=True) finds on a disk with the same files, and, for a folder
    that it finds, the keys in the folder that are not hidden, at any depth.

    Args:
      pattern: an address with *, ?, [...] or **, that begins with `folder` and a "/". With a "/" at its end it matches
        folders alone.
      folder: an address, the folders of `pattern` before the first with one of these characters.
      keys: the addresses of all objects in `folder`.
    """
    names = _names(folder, keys)
    paths = {folder}
    for part in pattern.removeprefix(f"{folder}/").removesuffix("/").split("/"):
        paths = _matches(part, paths & names.keys(), names)
    if pattern.endswith("/"):
        paths &= names.keys()
    return sorted(_visible(paths, names).intersection(keys))


def _names(folder: str, keys: Iterable[str]) -> Mapping[str, set[str]]:
    """Returns the names of what each folder has, by the address of the folder: `folder` and all folders in it."""
    names: dict[str, set[str]] = {}
    for path in keys:
        while path != folder:
            parent, _, name = path.rpartition("/")
            siblings = names.setdefault(parent, set())
            if name in siblings:
                break
            siblings.add(name)
            path = parent
    return names


def _matches(part: str, folders: Iterable[str], names: Mapping[str, set[str]]) -> set[str]:
    """Returns the paths in `folders` that match one part of a pattern: in glob.glob too, hidden names need a dot.

    names: of `_names`.
    """
    if part == "**":
        return _visible(folders, names)
    if not glob.has_magic(part):
        return {f"{folder}/{part}" for folder in folders if part in names[folder]}
    # A disk lists no names "." and "..", which the keys of a bucket may have.
    excluded = re.compile(r"\.\.?" if part.startswith(".") else r"\..*", re.DOTALL).fullmatch
    return {
        f"{folder}/{name}" for folder in folders for name in fnmatch.filter(names[folder], part) if not excluded(name)
    }


def _visible(paths: Iterable[str], names: Mapping[str, set[str]]) -> set[str]:
    """Returns `paths` and everything in them, at any depth, that is not hidden. names: of `_names`."""
    found = set(paths)
    pending = list(found)
    while pending:
        path = pending.pop()
        inside = {f"{path}/{name}" for name in names.get(path, ()) if not name.startswith(".")} - found
        found |= inside
        pending += inside
    return found
