"""The lock of a workdir: only one run at a time writes in the folder.

The lock is the file run.lock, which names the process that holds the lock. Its death frees the lock, however it ends:

- Processes of one kernel that see one file system use flock, which the kernel frees at once.
- Any other process watches the file's time of modification, which the holder renews every RENEW_SECONDS. If the time
  changes, the holder is alive; if it does not for DEAD_SECONDS, the lock is free. Clocks of hosts are not compared.

A process that replaces the lock X of a dead process first creates the file run.lock.X, which only one process can. That
file is itself a lock of the same kind, so the death of the process that replaces the lock frees it too.
"""

import contextlib
import errno
import glob
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

from contract.errors import ConfigError
from workdir.lock_file import Holder, flock_is_free, lock_forever, read_holder, renewed

LOCK_FILE = "run.lock"
RENEW_SECONDS = 10.0
DEAD_SECONDS = 60.0
# A process that was killed has its lock until the kernel has freed its memory.
DYING_SECONDS = 1.5
_POLL_SECONDS = 0.1
_ATTEMPTS = 50
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
_descriptors: set[int] = set()  # of the locks of this process


def _close_in_child() -> None:
    """Closes the descriptors of locks: with a copy of them, a child would keep the lock after the parent's death."""
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def lost_lock(workdir: str, path: str, id: str, holder: Holder | None) -> str:
    """Returns how the process of lock `id` has lost the lock `path`, which `holder` has now; "" if it has the lock."""
    if holder is None:
        return (
            f"--workdir={workdir}: {path} is gone: somebody deleted it, or another run took it over and has ended. "
            "This run ends, and the same command continues from the newest checkpoint"
        )
    if holder.id == id:
        return ""
    return (
        f"--workdir={workdir} is in use by {holder}: this process did not run for {DEAD_SECONDS:.0f} s or more, and "
        "has lost its lock; it ends"
    )


class WorkdirLock:
    """A context manager that holds the lock of a folder, which exists.

    Args:
      workdir: the folder.
      note: called with a line before a wait of up to DEAD_SECONDS. By default, the line is printed to standard error.

    Entering raises ConfigError, one line that names the host, the process and its start, if another process holds the
    lock: after DYING_SECONDS on one host, and after about RENEW_SECONDS if the process is on another one. Raises
    ConfigError also if the folder cannot be written.
    """

    def __init__(self, workdir: str, *, note: Callable[[str], Any] | None = None):
        self._workdir, self._path = workdir, os.path.join(workdir, LOCK_FILE)
        self._note = note or (lambda line: print(f"note: {line}", file=sys.stderr, flush=True))
        self.id = uuid.uuid4().hex[:16]
        self._temporary = f"{self._path}.{self.id}.tmp"
        self._domain = ""
        self._files: list[int] = []  # descriptors
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="workdir lock", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._write(self._temporary)
            self._renewing.start()
            self._take(self._path)
            self._remove_stale()
        except OSError as error:
            self._close()
            raise ConfigError(
                f"--workdir={self._workdir} cannot be locked: {error.filename or self._path}: {error.strerror}: choose "
                "another folder"
            ) from error
        except BaseException:
            self._close()
            raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # of a folder that has been deleted, for example
            holder = read_holder(self._path)
            if holder is not None and holder.id == self.id:
                os.unlink(self._path)
        self._close()

    def check(self) -> None:
        """Raises ConfigError if this process has lost the lock, as it does after it was suspended for DEAD_SECONDS."""
        try:
            holder = read_holder(self._path)
        except OSError as error:
            raise ConfigError(f"--workdir={self._workdir} cannot be read: {error.strerror}: {self._path}") from error
        if message := lost_lock(self._workdir, self._path, self.id, holder):
            raise ConfigError(message)

    def _remove_stale(self) -> None:
        """Removes the temporary files of processes that were killed while they waited for a lock."""
        now = os.fstat(self._files[0]).st_mtime  # of the file system, whose clock may be another host's
        for path in glob.glob(f"{glob.escape(self._path)}.*.tmp"):
            with contextlib.suppress(OSError):
                if path != self._temporary and os.stat(path).st_mtime < now - DEAD_SECONDS:
                    os.unlink(path)

    def _take(self, path: str) -> None:
        """Returns once the lock file `path` is this one. Raises ConfigError if a living process holds it."""
        for _ in range(_ATTEMPTS):
            self._create(path)
            holder = read_holder(path)
            if holder is None:  # freed meanwhile
                time.sleep(_POLL_SECONDS)
                continue
            if holder.id == self.id:
                return
            self._wait_for_death(path, holder)
            claim = f"{path}.{holder.id}"
            self._take(claim)
            now = read_holder(path)
            with contextlib.suppress(FileNotFoundError):  # if this process was suspended, and its claim was replaced
                if now is not None and now.id == holder.id:
                    os.replace(claim, path)
                else:
                    os.unlink(claim)
        raise ConfigError(f"--workdir={self._workdir}: {path} changes all the time: start one run at a time")

    def _wait_for_death(self, path: str, holder: Holder) -> None:
        """Returns once the holder of a lock is dead, or the lock is free. Raises ConfigError if the holder is alive."""
        if self._domain and holder.flock_domain == self._domain:
            end = time.monotonic() + DYING_SECONDS
            while not flock_is_free(path, holder):
                if time.monotonic() > end:
                    raise self._in_use(holder)
                time.sleep(_POLL_SECONDS)
            return
        self._note(
            f"--workdir={self._workdir} has the lock of {holder}: waiting up to {DEAD_SECONDS:.0f} s to see whether "
            "that process is alive"
        )
        end, before = time.monotonic() + DEAD_SECONDS, renewed(path)
        while before is not None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            now = renewed(path)
            if now is None:
                return
            if now != before:
                raise self._in_use(read_holder(path) or holder)

    def _in_use(self, holder: Holder) -> ConfigError:
        return ConfigError(
            f"--workdir={self._workdir} is in use by {holder}: wait for its end, stop it, or choose another --workdir"
        )

    def _create(self, path: str) -> None:
        """Creates the lock file `path`, complete, unless it exists."""
        with contextlib.suppress(FileExistsError):
            try:
                os.link(self._temporary, path)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                # Another process may read an incomplete file, which it takes to be damaged: it waits for a change.
                self._write(path)

    def _write(self, path: str) -> None:
        """Creates the file `path` with the description of this process. Raises FileExistsError if the file exists."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        os.fchmod(descriptor, 0o644)  # whatever the umask: other users must be able to see who holds the lock
        _descriptors.add(descriptor)
        self._files.append(descriptor)
        self._domain = lock_forever(descriptor)
        os.write(descriptor, Holder.this_process(self.id, self._domain).to_json())
        os.fsync(descriptor)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            for descriptor in list(self._files):
                with contextlib.suppress(OSError):  # `check` reports a lost file
                    os.utime(descriptor)

    def _close(self) -> None:
        """Ends the renewal and frees the flock."""
        self._ended.set()
        if self._renewing.is_alive():
            self._renewing.join()
        for descriptor in self._files:
            _descriptors.discard(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._files.clear()
