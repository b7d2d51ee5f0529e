"""Files that grow while a run trains: lines of metrics and events, on a local disk or in a bucket."""

import errno
import threading
import time
from typing import IO

from files import buckets
from files.storage import in_bucket, write_bytes

UPLOAD_SECONDS = 10.0
_LEAST_PAUSE = 20  # times the seconds of an upload, so that uploads of a long file take at most 5% of the time


class UploadedFile:
    """A file in a bucket, which has no appends: the whole file is written again, in a thread of its own.

    Bytes reach the bucket within UPLOAD_SECONDS, or within 20 times the seconds of an upload if this is longer; at once
    by `upload` and `close`. Those that a killed process had not uploaded are lost. A reader sees a beginning of the
    file, never a part of a `write`.

    Args:
      path: of the file in a bucket.
      contents: what the file has already.

    Once another process has replaced the file, as it may after it has taken over the lock of the workdir, nothing is
    uploaded any more. `write`, `upload` and `close` raise the OSError of an upload that failed.
    """

    def __init__(self, path: str, contents: bytes = b""):
        self._path, self._contents, self._uploaded = path, bytearray(contents), len(contents)
        _, self._version = buckets.read_version(path)
        self._error: OSError | None = None
        self._changed = threading.Lock()
        self._uploading = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"upload {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> int:
        """Adds bytes, and returns their number."""
        self._raise_error()
        with self._changed:
            self._contents += data
        return len(data)

    def flush(self) -> None:
        """Does nothing but raise the error of an upload: tensorboardX calls this method after every event."""
        self._raise_error()

    def upload(self) -> None:
        """Returns once the bucket has all bytes."""
        with self._uploading:
            with self._changed:
                contents = bytes(self._contents)
            if len(contents) > self._uploaded:
                self._version = self._write(contents)
                self._uploaded, self._error = len(contents), None

    def _write(self, contents: bytes) -> bytes:
        """Returns the new version of the file."""
        version = buckets.write(self._path, contents, version=self._version)
        if version is None:  # replaced by another process, or by a request of this one whose answer was lost
            found, version = buckets.read_version(self._path)
            if found != contents:
                raise OSError(errno.ESTALE, "another process has replaced the file", self._path)
        return version

    def close(self) -> None:
        """Uploads what is left, and ends the thread. May be called twice."""
        self._ended.set()
        self._thread.join()
        self.upload()

    def _run(self) -> None:
        pause = UPLOAD_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self.upload()
            except OSError as error:
                self._error = error
            pause = max(UPLOAD_SECONDS, _LEAST_PAUSE * (time.monotonic() - began))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def open_growing(path: str, contents: bytes) -> "IO[bytes] | UploadedFile":
    """Writes `contents` to the file `path`, and returns the file, open for more.

    It has no buffer, which would be written again when the file is closed after a failed write.
    """
    write_bytes(path, contents)
    return UploadedFile(path, contents) if in_bucket(path) else open(path, "ab", buffering=0)


def upload(file: "IO[bytes] | UploadedFile") -> None:
    """Returns once the bucket has all bytes of a file of `open_growing`. A local file has them already."""
    if isinstance(file, UploadedFile):
        file.upload()
