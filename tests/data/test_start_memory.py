"""The memory of the start of a run does not grow with the documents, and batches do not depend on how they are kept."""

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.start import write_store
from contract.errors import ConfigError
from contract.windows import BatchSpec, Capacity, WindowSpec
from data.store.store import TokenStore
from data.windows import bin_packing
from data.windows.batches import batches, loader
from data.windows.heldout import Heldout
from data.windows.membership import have_equal_documents
from data.windows.near_duplicates import near_duplicates
from data.windows.split import Split, heldout_digest, is_trained_on, split_documents
from data.windows.trigram import _first_by_digest
from files import mapped_arrays
from tests.data.corpus import store_of
from tests.data.test_copies import raising

ROOT = Path(__file__).parents[2]
HELDOUT_DOCUMENTS = 50  # expected, of any number
ROW = (Capacity("data.inputs_length", 64, True, True, 1),)
SPECS = {
    "join": WindowSpec("join", 1.0, 40, "join", False),
    "pack": WindowSpec("pack", 1.0, 40, "pack", True),
    "split": WindowSpec("split", 1.0, 12, "split", True, ("others", "begins_document", "ends_document")),
    "whole": WindowSpec("whole", 1.0, 64, "whole", True, capacities=ROW, on_unusable="skip"),
}
FIELDS = ("tokens", "keys", "denoiser_ids", "others_tokens", "begins_document")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK", 500)
    monkeypatch.setattr(mapped_arrays, "IN_MEMORY_BYTES", 1000)


def random_store(folder, documents) -> TokenStore:
    folder = store_of(folder, ["a", "b"]).folder
    write_store(folder, documents, 20)
    return TokenStore(folder)


def read(store, specs) -> list[np.ndarray]:
    """What is read at the start of a run: batches of two epochs, and all held-out batches."""

    def transform(windows, num_rows, groups=None):
        return windows

    split = Split(HELDOUT_DOCUMENTS / len(store), 0, "auto")
    train, heldout = split_documents(store, split)
    train, overlap = near_duplicates(train, heldout, "drop")
    spec = BatchSpec(tuple(specs), 1, pad_id=0)
    arguments = dict(batch_size=4, local_rows=range(4), seed=3)
    found = batches(train, spec, transform, **arguments)
    scored = Heldout(heldout, spec, transform, num_windows=40, **arguments).batches
    epoch = int(found.epoch_tokens.max()) // 40  # a batch in the second epoch of a reader, at least
    windows = [found.read(n, 1) for n in (0, 1, epoch)] + [scored.read(n, 1) for n in range(scored.end)]
    arrays = [getattr(part, name) for part in windows for name in FIELDS]
    counts = found.count_windows(0, 20)
    trained = is_trained_on(heldout, train, heldout)
    digest = np.frombuffer(heldout_digest(heldout, split).encode(), np.uint8)
    least, ends = _first_by_digest(train, 3000)
    assert have_equal_documents(store, store)
    overlaps = np.array([overlap.identical, overlap.train])
    return [array for array in arrays if array is not None] + [*counts, trained, digest, least, ends, overlaps]


@pytest.fixture(autouse=True)
def small_packed_blocks(monkeypatch):
    """These determine which documents share a row."""
    monkeypatch.setattr(bin_packing, "_BLOCK", 300)


def peak_of(folder, documents):
    """Returns the most bytes that Python and NumPy have at the same time, without memory maps."""
    store = random_store(folder, documents)
    tracemalloc.start()
    try:
        for spec in SPECS.values():
            read(store, [spec])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_documents(tmp_path, small_blocks):
    peak_of(tmp_path / "imports", 1000)
    once, often = (peak_of(tmp_path / str(n), n) for n in (4000, 32000))
    assert often < 1.3 * once, (once, often)


@pytest.mark.parametrize("names", [("join",), ("pack",), ("split",), ("whole",), ("join", "pack", "split")])
def test_batches_do_not_depend_on_blocks_and_files(tmp_path, names, request):
    """In memory, in one block each, the arrays are computed as in versions that had no blocks."""
    store, specs = random_store(tmp_path, 3000), [SPECS[name] for name in names]
    expected = read(store, specs)
    request.getfixturevalue("small_blocks")
    for found, array in zip(read(store, specs), expected, strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_a_full_disk_at_the_start_of_an_epoch_ends_the_batches_with_one_line(tmp_path, small_blocks, monkeypatch):
    spec = BatchSpec((SPECS["join"],), 1, pad_id=0)
    found = batches(
        split_documents(random_store(tmp_path, 3000), Split(0.1, 0, "auto"))[0],
        spec,
        lambda windows, num_rows: {"tokens": windows.tokens},
        batch_size=4,
        local_rows=range(4),
        seed=3,
    )
    of_epoch = int(found.epoch_tokens[0]) // (4 * 40)
    read = loader(found, start=0, threads=2, prefetch=2)
    assert next(read)["tokens"].shape == (4, 40)
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.ENOSPC), raising=False)
    with pytest.raises(ConfigError, match=r": No space left on device: free space on that disk"):
        for _ in range(of_epoch + 1):
            next(read)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_has_no_memory_for_each_document():
    """An int64 for each document would fail. The blocks are those of runs, not those of tests."""
    command = [sys.executable, "-m", "benchmarks.start", "--documents=2000000", "--tokens=32"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["bytes_per_document"] < 7, line
    assert 16 <= line["temporary_disk_per_document"] <= 64, line
