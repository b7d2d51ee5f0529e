"""Files that are read as what they contain, whether compressed or not."""

import errno
import io
import os
from typing import BinaryIO

# The end of a file's name -> the codec of PyArrow, which is installed with TensorFlow Datasets.
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_READ_AHEAD = 1 << 18  # bytes


def is_compressed(name: str) -> bool:
    """Returns whether a file's name ends in .gz, .zst or .bz2."""
    return os.path.splitext(name)[1] in _CODECS


def open_contents(path: str, name: str = "") -> BinaryIO:
    """Opens a file to read its contents, which are decompressed if its name says so.

    name: of the file, where `path` is a copy.

    Raises OSError, also while the contents are read: for damaged and for incomplete data.
    """
    file = open(path, "rb")  # noqa: SIM115
    codec = _CODECS.get(os.path.splitext(name or path)[1])
    return file if codec is None else io.BufferedReader(_Decompressed(file, codec), _READ_AHEAD)


class _Decompressed(io.RawIOBase):
    """The contents of a compressed file, with every error as an OSError that has a reason."""

    def __init__(self, file: BinaryIO, codec: str):
        import pyarrow  # a second of imports

        self._file, self._codec = file, codec
        # The decompressors of Python's standard library ignore what follows the first stream of a file in some formats.
        self._stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            read = self._stream.readinto(buffer)
        except OSError as error:
            raise self._damaged(error.strerror or str(error)) from None
        if not read and not os.fstat(self._file.fileno()).st_size:
            raise self._damaged("the file is empty")
        return read

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _damaged(self, reason: str) -> OSError:
        return OSError(errno.EIO, f"its {self._codec} data is damaged: {reason}", self._file.name)
