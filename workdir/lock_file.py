"""The file of a lock: who holds the lock, and whether that process is alive."""

import dataclasses
import datetime
import errno
import json
import os
import platform
import re
import stat
from typing import Any, Self

from files import buckets
from files.paths import in_bucket

try:
    import fcntl
except ImportError:  # not on this system: the time of modification decides everywhere
    fcntl = None  # type: ignore[assignment]

_UNREADABLE = "unreadable"


@dataclasses.dataclass(frozen=True)
class Holder:
    """The contents of a lock.

    Attributes:
      id: random, and part of file names.
      host: the name of the host.
      process_id: on that host, or in the container of that name.
      since: when the process took the lock, by the clock of its host.
      flock_domain: names a kernel and a file system. flock decides between processes of the same domain. "": it does
        not work there.
      renewals: how often a lock in a bucket was renewed.
    """

    id: str
    host: str = "an unknown host"
    process_id: int = 0
    since: str = "an unknown time"
    flock_domain: str = ""
    renewals: int = 0

    @classmethod
    def this_process(cls, id: str, flock_domain: str) -> Self:
        """The contents of a lock that this process takes now."""
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(id, platform.node(), os.getpid(), now, flock_domain)

    def to_json(self) -> bytes:
        """The contents of the file."""
        fields = dataclasses.asdict(self)
        if not self.renewals:  # earlier versions do not know this field
            del fields["renewals"]
        return (json.dumps(fields, indent=2) + "\n").encode()

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host}, which started at {self.since}"


def read_holder(path: str | os.PathLike) -> Holder | None:
    """Returns who holds the lock `path`; None if there is no lock. Raises OSError if the file cannot be read.

    The contents of a damaged file are unknown. Its id is then "unreadable".
    """
    if in_bucket(path):
        contents, _ = buckets.read_version(os.fspath(path))
        return None if contents is None else parse_holder(contents)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file: remove it", os.fspath(path))
        with open(path, "rb") as file:
            return parse_holder(file.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # NFS: another host has replaced the file since its name was looked up
            return None
        raise


def parse_holder(content: bytes) -> Holder:
    """Returns who holds a lock with these contents."""
    try:
        fields: dict[str, Any] = json.loads(content)
        holder = Holder(**fields)
    except (ValueError, TypeError):
        return Holder(_UNREADABLE)
    # The id becomes part of a file's name.
    return holder if re.fullmatch("[0-9a-f]{16}", str(holder.id)) else Holder(_UNREADABLE)


def lock_forever(descriptor: int) -> str:
    """Locks a file with flock until it is closed, and returns the flock domain; "" if flock does not work here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError):
        return ""
    return f"{_kernel()} {os.fstat(descriptor).st_dev}"


def flock_is_free(path: str, holder: Holder) -> bool:
    """Returns whether no process has the flock of the lock `path`, or another process than `holder` has the lock."""
    try:
        with open(path, "rb") as file:
            if parse_holder(file.read()) != holder:
                return True
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two that look do not hinder each other
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def renewed(path: str) -> tuple[int, int] | None:
    """Returns values that change when a lock is renewed or replaced; None if there is no lock."""
    try:
        with open(path, "rb") as file:  # NFS asks the server when a file is opened
            status = os.fstat(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise
    return status.st_ino, status.st_mtime_ns


def _kernel() -> str:
    """Returns a name of the running kernel, the same in all containers of a host."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # not Linux
        return platform.node()
