"""Builds a token store in several processes, so that a build that was stopped continues where it was."""

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from contract.errors import ConfigError
from data.sources import Source
from data.sources.config import CorpusConfig
from data.sources.from_files import ReadError
from data.store.build import Build, WorkerEndedError, WriteShards, build_store
from data.store.progress import PrepareProgress
from data.tokenizers.tokenizer import Tokenizer

_OLD_SECONDS = 3600  # the lock of a folder that is younger is not tried: its owner may be about to take the lock


def prepare_store(
    folder: Path, source: Source, corpus: CorpusConfig, tokenizer: Tokenizer, write: WriteShards
) -> PrepareProgress:
    """Builds the token store `folder`, and returns what was read. Its shards are in a folder next to it meanwhile.

    After a signal, a full disk, a read error or the end of a worker process, that folder stays, and the next call
    continues.

    Raises ConfigError as `data.store.build.build_store` does, and where another process prepares the same store; OSError.
    """
    _name_stopped(folder)
    with _locked(work_folder(folder)) as work:
        keeps_shards = True
        try:
            with PrepareProgress(source.num_bytes, lines=True) as progress:
                build_store(work, folder, Build(source, corpus, tokenizer, progress), write)
            keeps_shards = False
        except ConfigError as error:
            # Other errors are of the corpus, which has another store when its files are corrected.
            keeps_shards = isinstance(error, WorkerEndedError | ReadError)
            raise
        finally:
            if not (keeps_shards and any((work / "shards").glob("[!.]*"))):
                shutil.rmtree(work)
    return progress


def work_folder(folder: Path) -> Path:
    """Returns the folder of the shards of the token store `folder`, while it is prepared."""
    return folder.parent / f".{folder.name}.prepare"


def remove_work_folder(folder: Path) -> None:
    """Removes the shards of a finished store, which a process that was killed at its very end has left."""
    if work_folder(folder).exists():
        with contextlib.suppress(ConfigError), _locked(work_folder(folder)) as work:
            shutil.rmtree(work)


def _name_stopped(folder: Path) -> None:
    """Prints which folders next to `folder` have had shards of other stores for an hour or more, and no owner.

    A corpus whose files or fields have changed has a store of another name, and nothing continues from such shards.
    """
    others = sorted(set(folder.parent.glob(".*.prepare")) - {work_folder(folder)})
    stopped = [str(work) for work in others if _is_old(work / "shards") and not _is_locked(work)]
    if stopped:
        more = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
        print(
            f"note: {stopped[0]}{more} has shards of another store, whose preparation was stopped: delete the folder, "
            "unless the same command will be run again for the same files",
            file=sys.stderr,
            flush=True,
        )


def _is_old(folder: Path) -> bool:
    """Returns whether `folder` exists and has not changed for an hour."""
    try:
        return folder.stat().st_mtime < time.time() - _OLD_SECONDS
    except OSError:
        return False


def _is_locked(work: Path) -> bool:
    try:
        with open(work / "lock", "r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return not work.exists()  # it has just been removed
    return False


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[Path]:
    """Yields the folder `work`, made unless it exists, which no other process has at the same time."""
    path = work / "lock"
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path, "a+")  # noqa: SIM115  closed below
        except FileNotFoundError:  # the process that had the folder has just removed it
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ConfigError(
                    f"{file.read().strip() or 'another process'} prepares the token store {work.parent}/"
                    f"{work.name.removeprefix('.').removesuffix('.prepare')}: wait until it has ended"
                ) from None
            if not _is_file_at(path, file.fileno()):
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield work
            return


def _is_file_at(path: Path, descriptor: int) -> bool:
    """Returns whether the open file is the one that `path` names now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
