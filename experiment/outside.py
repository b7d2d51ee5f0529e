"""Objectives and learners outside this repository: how they are found, recorded with a run and compared.

A Python file registers an objective of its own, `OBJECTIVES["repeat"] = Repeat`, and a learner in LEARNERS. The file is
imported by the file of --config, named with --code, or named by an entry point of an installed package:

    [project.entry-points."cloze.objectives"]
    repeat = "repeat_text:Repeat"

config.json of a run records the file and its digest. Nothing is executed because config.json names it.
"""

import dataclasses
import hashlib
import importlib.metadata
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from contract.errors import ConfigError, errors_naming, programs_of_users
from experiment.config import from_mapping
from learners import LEARNERS
from learners.learner import Learner
from objectives import OBJECTIVES, Denoiser, Mixture, Objective

_GROUP = "cloze.objectives"  # of entry points
_TABLES: dict[str, Mapping[str, type]] = {"objectives": OBJECTIVES, "learners": LEARNERS}
_OURS = ("objectives", "learners")  # the packages of the classes that no run records
_SHOWN = 12  # digits of a digest in messages


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file of a class, and the SHA-256 of its contents; both are "" for a class of a session without a file."""

    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Code:
    """The section "code" of config.json: name -> origin of each objective and learner from outside."""

    objectives: dict[str, Origin]
    learners: dict[str, Origin]


def find_objective(name: Any) -> type[Objective | Mixture] | None:
    """Returns the entry of OBJECTIVES, to which an installed package may add it (cloze.objectives); None without one.

    Raises ConfigError for an entry point that cannot be loaded.
    """
    return OBJECTIVES.get(str(name)) or _of_entry_point(str(name))


def code_of(learner: Learner, denoisers: Iterable[Denoiser]) -> dict[str, Any]:
    """Returns the section "code" of a run's config, in a dict that is empty if every class is of this repository."""
    classes = {type(learner), *(type(denoiser.objective) for denoiser in denoisers)}
    outside = [each for each in classes if each.__module__.partition(".")[0] not in _OURS]
    return {"code": _origins(outside)} if outside else {}


def code_flag(learner: Learner, denoisers: Iterable[Denoiser]) -> str:
    """Returns the flag that a command needs to read a run, " --code=FILE"; "" where entry points or no file name it.

    The flag names one file: for classes of several files it is " --code=...", for a file that imports them.
    """
    origins = [each for kind in code_of(learner, denoisers).get("code", {}).values() for each in kind.items()]
    is_installed = {name for name, _ in origins if importlib.metadata.entry_points(group=_GROUP, name=name)}
    files = {origin["file"] for name, origin in origins if name not in is_installed} - {""}
    return f" --code={shlex.quote(files.pop()) if len(files) == 1 else '...'}" if files else ""


def code_digests(configs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns "code of objectives.NAME" -> the SHA-256 of its file, for all classes in the "code" of runs' configs."""
    kinds = [kind for config in configs for kind in config.get("code", {}).items()]
    return {f"code of {kind}.{name}": origin["sha256"] for kind, of in kinds for name, origin in of.items()}


def check_code(section: Any, file: str) -> None:
    """Checks that the tables have the objectives and learners with which a run was trained.

    section: "code" of its config.json, or None if that has none. file: that file, for messages.

    Raises ConfigError, one line, where a class is missing or is of a file with other contents, and for a section that
    is damaged. Contents of which a digest is unknown are not compared.
    """
    with errors_naming(file):
        _check_code({"objectives": {}, "learners": {}} if section is None else section)


def _check_code(section: Any) -> None:
    for kind, origins in vars(from_mapping(Code, section, "code")).items():
        for name, origin in origins.items():
            found = find_objective(name) if kind == "objectives" else LEARNERS.get(name)
            what = f"the {kind.removesuffix('s')} {name!r}"
            if not isinstance(found, type) or found.__module__.partition(".")[0] in _OURS:
                raise ConfigError(f"{what} is not of this repository: {_remedy(origin)}")
            now = _origin(found)
            if "" not in (now.sha256, origin.sha256) and now.sha256 != origin.sha256:
                raise ConfigError(
                    f"{what} of {now.file} (SHA-256 {now.sha256[:_SHOWN]}) is not the one that trained the run, of "
                    f"{origin.file} ({origin.sha256[:_SHOWN]}): restore that file as it was, or train again"
                )


def _remedy(origin: Origin) -> str:
    if not origin.file:
        return "a Python session registered it, so register it before this run is opened"
    where = "" if os.path.isfile(origin.file) else ", which is not on this machine: restore it"
    return (
        f"the run has it from {origin.file}{where}: read that file, and add --code={shlex.quote(origin.file)}, which "
        "executes it; in Python, import it first"
    )


def _origins(classes: Iterable[type]) -> dict[str, Any]:
    """Returns kind -> name in the table of that kind -> fields of an Origin."""
    return {
        kind: {name: dataclasses.asdict(_origin(each)) for name, each in table.items() if each in classes}
        for kind, table in _TABLES.items()
    }


def _origin(cls: type) -> Origin:
    """Returns where a class is from. A module may have been replaced since by another one of its name."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, cls.__name__, None) is not cls or not os.path.isfile(file):
        return Origin("", "")
    with open(file, "rb") as contents:
        return Origin(os.path.abspath(file), hashlib.file_digest(contents, "sha256").hexdigest())


def _of_entry_point(name: str) -> type[Objective] | None:
    """Returns the objective that an installed package names, and adds it to OBJECTIVES; None without one."""
    found = list(importlib.metadata.entry_points(group=_GROUP, name=name))
    if not found:
        return None
    where = f"the entry point {name!r} of {_GROUP}, {', '.join(entry.value for entry in found)},"
    if len(found) > 1:
        raise ConfigError(f"{where} is of several installed packages: remove all but one of them")
    with programs_of_users(f"{where} cannot be loaded"):
        cls = found[0].load()
    if not isinstance(cls, type) or not issubclass(cls, Objective):
        raise ConfigError(f"{where} is no subclass of objectives.objective.Objective")
    OBJECTIVES[name] = cls
    return cls
