"""Processes divide the verification of a large token store, and one that finds damage stops all."""

import itertools
import json
import pathlib

import pytest

from data.store import checksums
from data.store.store import TokenStore
from files.atomic import write_bytes
from files.paths import remove
from tests.data.corpus import store_of
from tests.data.test_checksums import flip
from tests.train.subprocesses import free_port, run

pytestmark = pytest.mark.slow

PROGRAM = """
import json, pathlib, shutil
from cluster.cluster import Cluster
from contract.errors import ConfigError
from data.store import checksums
from data.store.store import TokenStore
cluster = Cluster.join("localhost:%PORT%", 3, int(sys.argv[1]), multi_host=False, timeout_seconds=100)
checksums.SMALL_BYTES, checksums._PIECE_BYTES = 0, 1000
checksums._VERIFIED_STORES = "%FOLDER%/verified" + sys.argv[1]
pieces, piece_checksum = [], checksums._piece_checksum

def recorded(path, start, size):
    pieces.append([path.name, start])
    return piece_checksum(path, start, size)

checksums._piece_checksum = recorded
folder = pathlib.Path("%STORE%")
if %OWN% and jax.process_index() == 2:
    folder = pathlib.Path(shutil.copytree(folder, "%FOLDER%/own/" + folder.name))
error = ""
try:
    with cluster.check_equal(), cluster.exchanges(2) as exchanges:
        if %LEAVES% and jax.process_index() == 1:
            raise ConfigError("no corpus")
        TokenStore(folder, exchanges.all_gather)
except ConfigError as raised:
    error = str(raised)
remembered = len(list(pathlib.Path(checksums._VERIFIED_STORES).glob("*")))
print(json.dumps([sorted(pieces), error, remembered]))
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with 4 pieces of tokens.bin, which is verified like a large one."""
    monkeypatch.setattr(checksums, "SMALL_BYTES", 0)
    monkeypatch.setattr(checksums, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(checksums, "_VERIFIED_STORES", str(tmp_path / "verified"))
    store = store_of(tmp_path, ["abcdefghi" * 85, "xyz" * 255])
    assert store.meta["file_sizes"]["tokens.bin"] == 2 * (9 * 85 + 3 * 255 + 2)
    return store


def opened_by_three(store, tmp_path, *, own=False, leaves=False):
    """Of each process: the pieces that it read, its error, and the number of stores that it remembers as verified."""
    program = PROGRAM.replace("%PORT%", str(free_port())).replace("%STORE%", str(store.folder))
    program = program.replace("%OWN%", str(own)).replace("%LEAVES%", str(leaves))
    return run(program.replace("%FOLDER%", str(tmp_path)), devices=1, processes=3)


def all_pieces(store):
    return sorted([name, start] for name, start, *_ in checksums.pieces(store.meta))


def test_each_piece_is_read_by_one_process(store, tmp_path):
    found = opened_by_three(store, tmp_path)
    read = [pieces for pieces, *_ in found]
    assert sorted(piece for pieces in read for piece in pieces) == all_pieces(store)
    assert ["tokens.bin", 3000] in all_pieces(store), "tokens.bin has four pieces"
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert [rest for _, *rest in found] == [["", 1]] * 3
    assert [pieces for pieces, *_ in opened_by_three(store, tmp_path)] == [[]] * 3, "verified within the month"


def test_damage_that_one_process_finds_is_the_error_of_all_and_no_host_remembers_the_store(store, tmp_path):
    flip(store.folder / "tokens.bin", 8 * 2500)
    found = opened_by_three(store, tmp_path)
    [line] = {error for _, error, _ in found}
    assert line.startswith(f"token store {store.folder} is damaged (ValueError: tokens.bin differs from its checksum)")
    assert sum(["tokens.bin", 2000] in pieces for pieces, *_ in found) == 1
    assert [remembered for *_, remembered in found] == [0, 0, 0]


def test_a_copy_on_another_disk_is_verified_whole(store, tmp_path):
    first, second, third = opened_by_three(store, tmp_path, own=True)
    assert sorted(first[0] + second[0]) == third[0] == all_pieces(store)


def test_a_process_that_stops_before_does_not_keep_the_others_waiting(store, tmp_path):
    first, second, third = opened_by_three(store, tmp_path, leaves=True)
    assert sorted(first[0] + third[0]) == all_pieces(store) and second[0] == []
    assert all("no corpus" in error for _, error, _ in (first, second, third))


BY_RANGE = """
import json
from cluster.cluster import Cluster
from contract.errors import ConfigError
from data.store import checksums, ranges
from data.store.checksums import read_meta
cluster = Cluster.join("localhost:%PORT%", 2, int(sys.argv[1]), multi_host=False, timeout_seconds=100)
checksums._PIECE_BYTES, ranges.SMALL_BYTES, ranges._BLOCK_BYTES = 1000, 0, 300
read, read_ranges = [], ranges.read_ranges

def recorded(address, begins, ends):
    read.extend(zip(begins, ends))
    return read_ranges(address, begins, ends)

ranges.read_ranges = recorded
error = ""
try:
    with cluster.check_equal(), cluster.exchanges(2) as exchanges:
        import pathlib
        meta = read_meta(pathlib.Path("%STORE%"))
        tokens = ranges.open_tokens("%ADDRESS%", meta, exchanges.all_gather, True)
except ConfigError as raised:
    error = str(raised)
print(json.dumps([read, error]))
"""


def test_processes_divide_the_verification_of_tokens_in_a_bucket_and_record_it(store, buckets, tmp_path):
    address = f"s3://test-bucket/{tmp_path.name}"
    contents = (store.folder / "tokens.bin").read_bytes()

    def opened():
        program = BY_RANGE.replace("%PORT%", str(free_port())).replace("%ADDRESS%", address)
        return run(program.replace("%STORE%", str(store.folder)), devices=1, processes=2)

    write_bytes(f"{address}/tokens.bin", contents[:-1] + b"x")
    [line] = {error for _, error in opened()}
    assert line.startswith(f"token store {address} is damaged (ValueError: tokens.bin differs from its checksum)")
    remove(f"{address}/tokens.bin")
    write_bytes(f"{address}/tokens.bin", contents)
    found = opened()
    assert [error for _, error in found] == [""] * 2
    ends = sorted(tuple(part) for read, _ in found for part in read)
    assert ends[0][0] == 0 and ends[-1][1] == len(contents), "all of it was read"
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ends)), "and each byte once"
    assert all(read for read, _ in found)
    assert opened() == [[[], ""]] * 2, "the bucket says that this version was verified"


def test_a_process_alone_verifies_all(store):
    names = {path.name for path in store.folder.iterdir()} - {"meta.json"}
    assert {name for name, _ in map(tuple, all_pieces(store))} == names
    assert json.loads((pathlib.Path(store.folder) / "meta.json").read_text())["checksums"].keys() == names
    assert TokenStore(store.folder).verify() == sum(store.meta["file_sizes"].values())
