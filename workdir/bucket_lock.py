"""The lock of a workdir in a bucket, and the choice between this lock and that of a local folder.

A bucket has no flock, but conditional writes: run.lock is created only where there is none, and replaced only in the
version that was read. Of several processes that do so, one succeeds. The holder replaces its lock every RENEW_SECONDS;
a lock that does not change for DEAD_SECONDS is free. Clocks of hosts are not compared.

A store that is like S3 but ignores conditions (If-Match, If-None-Match) weakens this: two processes that take a free
lock at the same moment may both continue, until one of them finds the other's lock before its next write.
"""

import contextlib
import dataclasses
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

from contract.errors import ConfigError
from files import buckets
from files.paths import in_bucket
from workdir import workdir_lock
from workdir.lock_file import Holder, parse_holder
from workdir.workdir_lock import LOCK_FILE, WorkdirLock, lost_lock

_ATTEMPTS = 50
_POLLS = 10  # in RENEW_SECONDS


class BucketLock:
    """A context manager that holds the lock of a folder in a bucket: as WorkdirLock, without a folder to create."""

    def __init__(self, workdir: str, *, note: Callable[[str], Any] | None = None):
        self._workdir, self._path = workdir, os.path.join(workdir, LOCK_FILE)
        self._note = note or (lambda line: print(f"note: {line}", file=sys.stderr, flush=True))
        self.id = uuid.uuid4().hex[:16]
        self._holder = Holder.this_process(self.id, "")
        self._version: bytes | None = None
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="workdir lock", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._take()
        except OSError as error:
            raise ConfigError(
                f"--workdir={self._workdir} cannot be locked: {self._path}: {error.strerror}: choose another folder"
            ) from error
        self._renewing.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._renewing.join()
        with contextlib.suppress(OSError):
            holder, version = self._read()
            if holder is not None and holder.id == self.id:
                buckets.write(self._path, None, version=version)

    def check(self) -> None:
        """Raises ConfigError if this process has lost the lock, as it does after it was suspended for DEAD_SECONDS."""
        try:
            holder, _ = self._read()
        except OSError as error:
            raise ConfigError(f"--workdir={self._workdir} cannot be read: {error.strerror}: {self._path}") from error
        if message := lost_lock(self._workdir, self._path, self.id, holder):
            raise ConfigError(message)

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            holder, version = self._read()
            if holder is not None and not self._is_dead(holder, version):
                continue
            written = buckets.write(self._path, self._holder.to_json(), version=version)
            holder, self._version = self._read()
            if holder is not None and holder.id == self.id:
                return
            if written is None and holder is not None:  # another process was faster
                raise self._in_use(holder)
        raise ConfigError(f"--workdir={self._workdir}: {self._path} changes all the time: start one run at a time")

    def _is_dead(self, holder: Holder, version: bytes) -> bool:
        """Returns whether the holder is dead, after a wait; False if the lock is free. Raises ConfigError otherwise."""
        seconds = workdir_lock.DEAD_SECONDS
        self._note(
            f"--workdir={self._workdir} has the lock of {holder}: waiting up to {seconds:.0f} s to see whether that "
            "process is alive"
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(workdir_lock.RENEW_SECONDS / _POLLS)
            now, version_now = self._read()
            if now is None:
                return False
            if version_now != version:
                raise self._in_use(now)
        return True

    def _in_use(self, holder: Holder) -> ConfigError:
        return ConfigError(
            f"--workdir={self._workdir} is in use by {holder}: wait for its end, stop it, or choose another --workdir"
        )

    def _read(self) -> tuple[Holder | None, bytes]:
        contents, version = buckets.read_version(self._path)
        return (None if contents is None else parse_holder(contents)), version

    def _renew(self) -> None:
        while not self._ended.wait(workdir_lock.RENEW_SECONDS):
            with contextlib.suppress(OSError):  # `check` reports a bucket that cannot be read
                # Another number, because the version of an object in S3 is a hash of its contents.
                self._holder = dataclasses.replace(self._holder, renewals=self._holder.renewals + 1)
                written = buckets.write(self._path, self._holder.to_json(), version=self._version)
                if written is None:  # replaced by another process, or by a request of this one whose answer was lost
                    holder, version = self._read()
                    written = version if holder is not None and holder.id == self.id else self._version
                self._version = written


Lock = WorkdirLock | BucketLock


def lock_of(workdir: str, *, note: Callable[[str], Any] | None = None) -> Lock:
    """Returns the lock of a folder, which exists, or of a folder in a bucket. See WorkdirLock."""
    return BucketLock(workdir, note=note) if in_bucket(workdir) else WorkdirLock(workdir, note=note)
