"""Arrays in temporary files: what is in memory and what is not, full disks, and processes that are killed."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from files import mapped_arrays
from files.mapped_arrays import new_array, select, sums
from tests.data.test_copies import raising

ROOT = Path(__file__).parents[2]
LARGE = (mapped_arrays.IN_MEMORY_BYTES >> 3) + 1  # int64


def is_mapped(array):
    return type(array.base).__name__ == "memoryview" and type(array.base.obj).__name__ == "mmap"


def test_large_arrays_are_zeros_in_files_without_names(tmp_path):
    array = new_array(tmp_path, LARGE, np.int64)
    assert is_mapped(array) and array.shape == (LARGE,) and array.dtype == np.int64 and not array.any()
    array[-1] = 7
    assert array[-1] == 7 and list(tmp_path.iterdir()) == []
    assert not is_mapped(new_array(tmp_path, LARGE - 1, np.int64))
    assert not is_mapped(new_array(tmp_path / "absent", 0, np.int64))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_the_file_of_a_store_that_cannot_be_written_is_where_temporary_files_are(tmp_path, monkeypatch, number):
    make, folders = tempfile.TemporaryFile, []

    def temporary_file(dir=None):
        folders.append(dir)
        if dir == tmp_path:
            raise OSError(number, os.strerror(number))
        return make(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    assert is_mapped(new_array(tmp_path, LARGE, np.int64)) and folders == [tmp_path, Path(tempfile.gettempdir())]


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.ENOSPC), raising=False)
    with pytest.raises(ConfigError, match=r"temporary file of 1,048,584 bytes .*: No space left on device: free space"):
        new_array(tmp_path, LARGE, np.int64)
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.EFBIG), raising=False)
    with pytest.raises(ConfigError, match=r": File too large: raise the limit of file sizes"):
        new_array(tmp_path, LARGE, np.int64)
    with pytest.raises(ConfigError, match=r"absent: No such file or directory"):
        new_array(tmp_path / "absent", LARGE, np.int64)
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.ENOSPC), raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(mapped_arrays, "_READ_ONLY", (errno.ENOSPC,))
    with pytest.raises(ConfigError, match=r"/other: No space left on device: .* set TMPDIR to"):
        new_array(tmp_path, LARGE, np.int64)


PROGRAM = """
import os, pathlib, sys, time
import numpy as np
from data.mapped_arrays import new_array
array = new_array(pathlib.Path(sys.argv[1]), 1 << 20, np.int64)
if os.fork() == 0:
    array[5] = 3  # the processes have one array
    os._exit(0)
os.wait()
print(array[5], os.listdir(sys.argv[1]), flush=True)
time.sleep(600)
"""


def test_processes_that_are_forked_share_the_array_and_a_kill_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "3 []\n"
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(2**40), 2**40), max_size=30), st.integers(1, 12))
def test_sums_and_selections_do_not_depend_on_blocks(values, block):
    values = np.array(values, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "BLOCK", block)
        patch.setattr(mapped_arrays, "IN_MEMORY_BYTES", 0)
        np.testing.assert_array_equal(sums(values.__getitem__, len(values), Path()), np.cumsum(values))
        even = values % 2 == 0
        np.testing.assert_array_equal(select(values, even.__getitem__, Path()), values[even])
