"""Tokens that are read by range from a bucket: the same windows, one verification, and one line for errors."""

import errno
import json
import shutil

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from contract.errors import ConfigError
from contract.windows import Capacity, WindowSpec
from data.store import checksums, ranges
from data.store.checksums import verify_together
from data.store.ranges import RangeTokens
from data.store.store import TokenStore
from data.windows.batches import loader
from data.windows.corpus_statistics import trigram_loss
from data.windows.documents import MixedDocuments
from files.atomic import write_bytes
from files.paths import EXTRAS, exists, list_names, read_bytes, read_ranges, remove, remove_folder, write_object
from tests.data.corpus import all_documents, batches_of, corpus_config, opened, store_of, write_texts

TEXTS = [f"{'word ' * (7 * n % 40)}end of {n}" for n in range(30)]


class MemoryBucket(MemoryFileSystem):
    """gs:// in the memory of this process, with versions of objects."""

    protocol = ("gs", "gcs")

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs://"))

    def info(self, path, **kwargs):
        found = super().info(path, **kwargs)
        return found | {"ETag": str(found.get("created"))}


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setitem(EXTRAS, "gs", ("gcs", "fsspec"))
    monkeypatch.setattr(MemoryBucket, "store", {})
    monkeypatch.setattr(MemoryBucket, "pseudo_dirs", ["", "/bucket"])
    registered = [fsspec.registry.get(name) for name in MemoryBucket.protocol]
    for name in MemoryBucket.protocol:
        fsspec.register_implementation(name, MemoryBucket, clobber=True)
    yield "gs://bucket/folder"
    for name, before in zip(MemoryBucket.protocol, registered, strict=True):
        if before is not None:
            fsspec.register_implementation(name, before, clobber=True)


@pytest.fixture
def config(bucket, tmp_path, monkeypatch):
    """The config of a corpus whose store is in a bucket and not on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(checksums, "_VERIFIED_STORES", str(tmp_path / "verified"))
    write_texts(tmp_path, TEXTS)
    config = corpus_config(tmp_path, cache_dir=f"{bucket}/cache")
    opened(config)
    shutil.rmtree(tmp_path / "home")
    return config


@pytest.fixture
def local(config, tmp_path):
    """The same store on this machine."""
    return store_of(tmp_path / "local", TEXTS)


@pytest.fixture
def store(config):
    return opened(config, by_range=True)


@pytest.fixture
def tokens_address(config):
    return f"{config.cache_dir}/{list_names(config.cache_dir)[0]}/tokens.bin"


@pytest.fixture
def sizes(monkeypatch):
    """The bytes of each range that is read."""
    found, read_ranges = [], ranges.read_ranges

    def recorded(address, begins, ends):
        found.extend(np.subtract(ends, begins).tolist())
        return read_ranges(address, begins, ends)

    monkeypatch.setattr(ranges, "read_ranges", recorded)
    return found


def test_what_is_read_equals_the_local_array(store, local, tmp_path):
    assert isinstance(store.tokens, RangeTokens) and not list((tmp_path / "home").glob("**/tokens.bin"))
    assert store.content_digest == local.content_digest and len(store) == len(local)
    tokens, count = local.tokens, len(local.tokens)
    for key in (slice(0, 0), slice(3, 40), slice(count - 2, count + 5), slice(9, 2), slice(-4, None)):
        np.testing.assert_array_equal(store.tokens[key], tokens[key])
    for places in ([5], [0, 1, 2, 9, 8, 8, 9], [-1, 0, 1, -2, count - 1]):
        found = store.tokens[np.array(places)]
        assert found.dtype == tokens.dtype
        np.testing.assert_array_equal(found, tokens[np.array(places)])
    for theirs, ours in zip(
        store.tokens.read([0, 7, 3], [2, 0, 4]), (tokens[:2], tokens[:0], tokens[3:7]), strict=True
    ):
        np.testing.assert_array_equal(theirs, ours)
    np.testing.assert_array_equal(all_documents(store).tokens(4), all_documents(local).tokens(4))


def test_adjacent_places_are_one_request(store, local, sizes):
    store.tokens[np.array([4, 5, 6, 10, 11, 3])]
    assert sizes == [width * local.tokens.itemsize for width in (3, 2, 1)]


@pytest.mark.parametrize("documents", ["join", "pack", "split", "whole"])
def test_batches_are_those_of_the_local_copy(store, local, documents, sizes):
    """From any batch on, for all rows or those of one of two processes."""
    spec = WindowSpec("x", 1.0, 24, documents, True, capacities=(Capacity("data.inputs_length", 300, True, True, 0),))
    for rows in (range(8), range(0, 8, 2), range(1, 8, 2)):
        theirs, ours = (batches_of(all_documents(each), [spec], local_rows=rows) for each in (store, local))
        for n in (0, 1, 5):
            for name, values in ours[n]._asdict().items():
                np.testing.assert_array_equal(getattr(theirs[n], name), values)
    del sizes[:]
    batch = theirs[7]
    assert sum(sizes) == local.tokens.itemsize * batch.lengths.sum(), "nothing but the batch's tokens is read"


def test_corpora_of_which_one_has_a_copy(store, local):
    windows = [
        WindowSpec(name=name, weight=1.0, raw_length=24, documents="join", eos=True, corpus=k)
        for k, name in enumerate(("a", "b", "c"))
    ]
    found = [
        batches_of(MixedDocuments([all_documents(each) for each in stores], (1.0,) * 3), windows)[2].tokens
        for stores in ((store, local, store), (local, local, local))
    ]
    np.testing.assert_array_equal(*found)


def test_the_trigram_model_is_that_of_the_local_copy(store, local):
    places = np.concatenate([np.arange(3), np.arange(100, 200)])
    theirs, ours = (trigram_loss(all_documents(each), places, eos=1) for each in (store, local))
    assert theirs == ours and ours.train_tokens == len(local.tokens)


def test_a_version_is_verified_once(config, store, tokens_address, sizes, capsys):
    folder = tokens_address.rpartition("/")[0]
    assert "verified.txt" in list_names(folder)
    capsys.readouterr()
    again = opened(config, by_range=True)
    assert (
        sizes == [] and capsys.readouterr().err == f"note: token store {folder}: 0.0 GB of tokens are read by range\n"
    )
    contents = read_bytes(tokens_address)
    remove(tokens_address)
    write_bytes(tokens_address, contents)
    with pytest.raises(ConfigError, match="was replaced"):
        again.tokens[:9]
    del sizes[:]
    opened(config, by_range=True)
    assert sum(sizes) == len(contents), "another version is verified, and then it is the one that was"
    opened(config, by_range=True)
    assert sum(sizes) == len(contents)


def test_without_permission_to_write_the_next_start_verifies_again(config, sizes, monkeypatch, capsys):
    def refused(address, contents):
        raise OSError(errno.EACCES, "Permission denied", address)

    monkeypatch.setattr(ranges, "write_object", refused)
    for _ in range(2):
        opened(config, by_range=True)
    assert len(sizes) == 2 and capsys.readouterr().err.count("(Permission denied): the next start verifies") == 2


def test_a_config_of_somebody_else_writes_nothing_to_the_bucket(config, tokens_address, tmp_path):
    before = list_names(tokens_address.rpartition("/")[0])
    store = opened(config, by_range=True, new_store_dir=str(tmp_path / "mine"))
    assert isinstance(store.tokens, RangeTokens) and not (tmp_path / "mine").exists()
    assert list_names(tokens_address.rpartition("/")[0]) == before
    opened(config, by_range=True, new_store_dir=config.cache_dir)
    assert "verified.txt" in list_names(tokens_address.rpartition("/")[0])


def test_a_copy_on_this_machine_is_used(config, sizes, tmp_path):
    opened(config)
    store = opened(config, by_range=True)
    assert isinstance(store.tokens, np.ndarray) and sizes == []
    of_folder = corpus_config(tmp_path)
    assert isinstance(opened(of_folder, by_range=True).tokens, np.ndarray), "a folder of this machine has no copies"


def test_the_process_that_builds_the_store_copies_it_to_the_bucket(config, tmp_path):
    other = corpus_config(tmp_path, cache_dir=f"{config.cache_dir}2")
    assert isinstance(opened(other, by_range=True).tokens, np.ndarray)
    shutil.rmtree(tmp_path / "home")
    assert isinstance(opened(other, by_range=True).tokens, RangeTokens)


@pytest.mark.parametrize("damage", ["changed", "shorter", "deleted"])
def test_damaged_tokens_are_one_line(config, tokens_address, damage):
    contents = read_bytes(tokens_address)
    remove(tokens_address)
    if damage == "changed":
        write_bytes(tokens_address, bytes([contents[0] ^ 1]) + contents[1:])
    if damage == "shorter":
        write_bytes(tokens_address, contents[:-2])
    reasons = {"changed": "tokens.bin differs from its checksum", "shorter": r"tokens.bin has \d+ bytes, not \d+"}
    pattern = rf"^token store {tokens_address.rpartition('/')[0]} is damaged \(.*{reasons.get(damage, 'No such file')}"
    for _ in range(2):
        with pytest.raises(ConfigError, match=pattern):
            opened(config, by_range=True)


def test_a_store_that_was_deleted_from_the_bucket_is_built_again(config, store, tokens_address):
    remove_folder(tokens_address.rpartition("/")[0])
    assert isinstance(opened(config, by_range=True).tokens, np.ndarray) and exists(tokens_address)


def test_columns_of_another_store_of_this_name_are_copied_again(config, store, tokens_address):
    meta = store.folder / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"num_tokens": 1}))
    assert isinstance(opened(config, by_range=True).tokens, RangeTokens)
    assert meta.read_bytes() == read_bytes(f"{tokens_address.rpartition('/')[0]}/meta.json")


@pytest.mark.parametrize("marker", [b"\xff\xfe", b"another version"])
def test_a_marker_of_no_version_is_verified_again(config, store, tokens_address, marker, sizes):
    write_object(f"{tokens_address.rpartition('/')[0]}/verified.txt", marker)
    opened(config, by_range=True)
    assert sum(sizes) == len(read_bytes(tokens_address))


def test_an_object_that_is_replaced_while_it_is_verified_is_not_called_damaged(config, tokens_address, monkeypatch):
    def replaced(address, begins, ends):
        contents = read_bytes(address)
        remove(address)
        write_bytes(address, contents)
        return read_ranges(address, begins, ends)

    monkeypatch.setattr(ranges, "read_ranges", replaced)
    with pytest.raises(ConfigError, match=rf"^{tokens_address} was replaced or deleted while it was read"):
        opened(config, by_range=True)


@pytest.mark.parametrize("raised", [OSError(errno.EIO, "connection reset"), ConfigError("replaced"), ValueError("x")])
def test_what_one_process_of_a_verification_raises_all_raise(raised):
    """Of two processes the other one's part is whole."""
    places = iter([["place", "other", False], ["other", [[ConfigError, OSError, ValueError].index(type(raised)), "x"]]])
    with pytest.raises(type(raised)) as error:
        verify_together("store", "place", False, lambda part: None, lambda value: [value, next(places)])
    assert type(error.value) is type(raised)


def test_damaged_columns_are_one_line(config, store):
    path = store.folder / "offsets.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match=rf"^token store {store.folder} is damaged .*offsets.npy differs"):
        opened(config, by_range=True)


@pytest.mark.parametrize("change", ["replaced", "shorter", "deleted"])
def test_another_object_during_the_run_ends_it_with_one_line(store, tokens_address, change):
    spec = WindowSpec(name="x", weight=1.0, raw_length=24, documents="join", eos=True)
    made = batches_of(all_documents(store), [spec], lambda windows, num_rows: {"x": windows.tokens})
    batches = loader(made, start=0, threads=0, prefetch=1)
    next(batches)
    contents = read_bytes(tokens_address)
    remove(tokens_address)
    if change != "deleted":
        write_bytes(tokens_address, contents[::-1] if change == "replaced" else contents[:10])
    for threads in (0, 2):
        batches = loader(made, start=1, threads=threads, prefetch=2)
        with pytest.raises(ConfigError) as raised:
            next(batches)
        assert str(raised.value) == (
            f"{tokens_address} was replaced or deleted while it was read: restore it, and start the run again, "
            "which continues from its newest checkpoint"
        )


def test_fewer_bytes_than_requested_are_an_error(store, monkeypatch):
    monkeypatch.setattr(MemoryBucket, "cat_file", lambda self, path, start=None, end=None: b"x")
    with pytest.raises(OSError, match="fewer bytes came than were requested"):
        store.tokens[5:9]


def test_a_store_has_the_files_that_it_is_opened_with(store):
    with pytest.raises(ConfigError, match=r"is damaged .*tokens\.bin"):
        TokenStore(store.folder)
