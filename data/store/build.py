"""Builds a token store: writes the shards of a corpus, here or in other processes, and assembles them."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from contract.errors import ConfigError
from data.duplicates.near_pairs import MAX_DOCUMENTS
from data.sources import Part, Source
from data.sources.config import CorpusConfig
from data.store.assembly import assemble
from data.store.progress import PrepareProgress
from data.store.shard import SHARD_FORMAT, Shard, write_shard
from data.tokenizers.tokenizer import Tokenizer

_STALE_SECONDS = 24 * 3600
_NUM_SHARDS = 256  # of a corpus that is neither small nor large
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20  # of a shard's text


class WorkerEndedError(ConfigError):
    """A worker ended before it had written its shard, not because of the corpus. What is finished stays useful."""


class ShardTask(NamedTuple):
    """A shard that is to be written. It can be pickled."""

    folder: Path
    parts: tuple[Part, ...]

    @property
    def where(self) -> str:
        """The names of the parts, for messages."""
        first, last = self.parts[0].name, self.parts[-1].name
        return first if first == last else f"{first} to {last}"


@dataclasses.dataclass
class Build:
    """The build of one token store.

    Attributes:
      source, corpus, tokenizer: what is built.
      progress: shows how much is done.
      num_documents: in the shards that are finished, so far.
    """

    source: Source
    corpus: CorpusConfig
    tokenizer: Tokenizer
    progress: PrepareProgress
    num_documents: int = 0

    @property
    def needs_signatures(self) -> bool:
        """Whether a shard that is begun now needs signatures: not in a corpus that is too large for a search."""
        return self.corpus.filters.remove_duplicates == "near" or self.num_documents <= MAX_DOCUMENTS


WriteShards = Callable[[Build, Sequence[ShardTask]], None]  # writes all shards, or raises


def write_shards(build: Build, tasks: Sequence[ShardTask]) -> None:
    """Writes shards one after another in this process. Raises as `write_shard` does."""
    for task in tasks:
        shard = write_shard(
            task.folder,
            task.parts,
            build.corpus,
            build.tokenizer,
            with_signatures=build.needs_signatures,
            note=build.progress.add,
        )
        build.num_documents += len(shard)


def build_store(work: Path, folder: Path, build: Build, write: WriteShards = write_shards) -> None:
    """Builds the token store `folder`, which gets its name when it is complete.

    work: a folder next to it, where shards are written. Shards that it has, from a build of the same store that was
    stopped, are not written again.

    Raises ConfigError for a corpus that cannot be read or has no text, and OSError where a folder cannot be written.
    """
    tasks = plan_shards(build.source, work / "shards")
    _check_plan(work, tasks)
    for unfinished in (work / "shards").glob(".*"):  # of workers that were killed
        shutil.rmtree(unfinished)
    missing = []
    for task in tasks:
        shard = finished_shard(task.folder)
        if shard is None:
            missing.append(task)
        else:
            build.num_documents += len(shard)
            build.progress.skip(sum(part.num_bytes for part in task.parts))
    # Held-out text, the last of the store, is read first, so that its damage is found before most of the rest is read.
    write(build, sorted(missing, key=lambda task: not any(part.is_heldout for part in task.parts)))
    build.progress.stage("writing the token store")
    shutil.rmtree(work / "store", ignore_errors=True)
    (work / "store").mkdir()
    shards = [Shard(task.folder) for task in tasks]
    source = build.source
    assemble(
        work / "store",
        shards,
        build.corpus.filters,
        build.tokenizer,
        name=folder.name,
        where=source.where,
        cut=source.cut,
    )
    try:
        os.rename(work / "store", folder)
    except OSError:
        if not folder.exists():
            raise
        # Another process finished first, and its store is equal to this one.


def plan_shards(source: Source, folder: Path) -> list[ShardTask]:
    """Returns the shards of a corpus, in order, which depend on its parts alone."""
    size = min(max(source.num_bytes // _NUM_SHARDS, _LEAST_BYTES), _MOST_BYTES)
    return [ShardTask(folder / f"{number:06d}", parts) for number, parts in enumerate(_groups(source.parts, size))]


def _check_plan(work: Path, tasks: Sequence[ShardTask]) -> None:
    """Makes the folder of the shards. Removes those of another plan first, which an earlier version has written."""
    parts = [[(part.name, part.num_bytes) for part in task.parts] for task in tasks]
    plan = hashlib.blake2b(json.dumps([SHARD_FORMAT, parts]).encode(), digest_size=16).hexdigest()
    path, shards = work / "plan", work / "shards"
    if shards.exists() and not (path.exists() and path.read_text() == plan):
        shutil.rmtree(shards)
    shards.mkdir(parents=True, exist_ok=True)
    path.write_text(plan)


def _groups(parts: Sequence[Part], size: int) -> Iterator[tuple[Part, ...]]:
    """Yields the parts in groups of consecutive ones: a group ends when it has `size` bytes."""
    group: list[Part] = []
    num_bytes = 0
    for part in parts:
        group.append(part)
        num_bytes += part.num_bytes
        if num_bytes >= size:
            yield tuple(group)
            group, num_bytes = [], 0
    if group:
        yield tuple(group)


def finished_shard(folder: Path) -> Shard | None:
    """Returns the shard in `folder`; None where there is none, or where it is damaged, and is then removed."""
    if not folder.exists():
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        shard = Shard(folder)
        shard.verify()
        return shard
    shutil.rmtree(folder)
    return None


def remove_stale_work(folder: Path) -> None:
    """Removes the folders of killed builds of the store `folder` by training: those that nobody writes to for a day."""
    for work in folder.parent.glob(f".{folder.name}-*"):
        newest = work.stat().st_mtime
        for parent, _, names in os.walk(work):
            for name in ("", *names):
                with contextlib.suppress(FileNotFoundError):  # the build may be running
                    newest = max(newest, os.stat(os.path.join(parent, name)).st_mtime)
        if newest < time.time() - _STALE_SECONDS:
            shutil.rmtree(work, ignore_errors=True)
