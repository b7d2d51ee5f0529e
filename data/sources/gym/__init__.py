"""data.source="gym": synthetic tasks with exact answers, drawn from a seed. Nothing is downloaded.

data.path names the task and, where they differ from its defaults, its sizes: "star_graph", or
"star_graph:degree=3,length=5". A document is an instance of the task: a prompt, the answer as its text, and the group
in which `train.evaluate --probe=exact_match` scores it as its label. The test instances are the held-out text.

To add a task, subclass Task (facts.py) or DrawnTask (drawn.py) and add it to TASKS.
"""

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterator
from pathlib import Path

from contract.errors import ConfigError
from contract.ranges import check_ranges
from data.sources.config import CorpusConfig
from data.sources.files import text_digest
from data.sources.gym.drawn import CFG, MQAR, Addition, Countdown, SelectiveCopy, StarGraph, Sudoku4
from data.sources.gym.facts import Relationship, Retrieval, Reversal
from data.sources.gym.sudoku9 import Sudoku9
from data.sources.gym.task import Instance, Task
from data.sources.source import Part, RawDocument, Skipped, Source

__all__ = ["CUT", "TASKS", "Instance", "Task", "make_task", "open_gym"]

CUT = "instance"  # Source.cut: how documents are cut
TASKS: dict[str, type[Task]] = {
    "addition": Addition,
    "cfg": CFG,
    "countdown": Countdown,
    "mqar": MQAR,
    "relationship": Relationship,
    "retrieval": Retrieval,
    "reversal": Reversal,
    "selective_copy": SelectiveCopy,
    "star_graph": StarGraph,
    "sudoku4": Sudoku4,
    "sudoku9": Sudoku9,
}


def open_gym(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the instances of the task that `path` names. Its identity has a digest of this folder's code."""
    task = make_task(path, field)
    parts = tuple(
        Part(name, 0, functools.partial(_read, task, name), is_heldout=name == "test") for name in ("train", "test")
    )
    code = text_digest(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))))
    identity = {"task": type(task).__name__, **dataclasses.asdict(task), "code": code}
    return Source(f"{field}={path!r}", identity, CUT, parts)


def make_task(path: str, field: str = "data.path") -> Task:
    """Returns the task that `path`, such as "mqar:pairs=4,queries=2", names.

    field: the config field of the path, for messages. Raises ConfigError for an unknown task or size, and for sizes
    that cannot work.
    """
    name, _, given = path.partition(":")
    if name not in TASKS:
        raise ConfigError(f"{field}={path!r} names no task of the gym: {_choices(name, TASKS)}")
    sizes = {size.name: typing.cast(int, size.default) for size in dataclasses.fields(TASKS[name])}
    items = [item.partition("=") for item in given.split(",")] if given else []
    for size, _, value in items:
        if size not in sizes:
            raise ConfigError(f"{field}={path!r}: {name} has no size {size!r}: {_choices(size, sizes)}")
        if [other for other, *_ in items].count(size) > 1:
            raise ConfigError(f"{field}={path!r} gives the size {size} more than once: remove all but one")
        try:
            sizes[size] = int(value)
        except ValueError:
            raise ConfigError(f"{field}={path!r}: {size}={value!r} must be an integer, as in {size}=4") from None
    check_ranges(TASKS[name], sizes, f"{field}={path!r}: {name}")
    task = TASKS[name](**sizes)
    if problem := task.problem():
        raise ConfigError(f"{field}={path!r}: {problem}")
    return task


def _choices(name: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"use {', '.join(known)}{f'; did you mean {near[0]!r}?' if near else ''}"


def _read(task: Task, name: str, skipped: Skipped) -> Iterator[RawDocument]:
    for prompt, answer, kind in task.test() if name == "test" else task.train():
        yield RawDocument(f"gym/{name}", answer, prompt, kind)
