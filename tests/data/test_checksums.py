"""Damaged files of a token store are found: when it is opened, a large one once a month, and by --verify."""

import hashlib
import os
import random
import time
from contextlib import nullcontext

import pytest

from contract.errors import ConfigError
from data.prepare.__main__ import main
from data.store import checksums
from data.store.store import TokenStore
from tests.data.corpus import corpus_config, opened, store_of

FLIPS = 10  # bits of each file, drawn anew in each run of the test


@pytest.fixture
def large_stores(monkeypatch, tmp_path):
    """Treats every store as too large to be verified when it is opened."""
    monkeypatch.setattr(checksums, "SMALL_BYTES", 0)
    monkeypatch.setattr(checksums, "_VERIFIED_STORES", str(tmp_path / "verified"))


def flip(path, bit=0):
    """Flips a bit, and leaves size and modification time as they are."""
    info, contents = path.stat(), bytearray(path.read_bytes())
    contents[bit // 8] ^= 1 << bit % 8
    path.write_bytes(contents)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_no_damage_of_a_file_is_accepted(tmp_path):
    folder = store_of(tmp_path, ["ab", "cd", "ab"]).folder
    files = sorted(folder.iterdir())
    assert len(files) == 17
    for path in files:
        contents = path.read_bytes()
        bits = random.sample(range(8 * len(contents)), min(FLIPS, 8 * len(contents)))
        for damaged in [b"", contents[:-1], contents + b"\0", bytes(len(contents)), None, *bits]:
            if damaged is None:
                path.unlink()
            elif isinstance(damaged, int):
                flip(path, damaged)
            else:
                path.write_bytes(damaged)
            with pytest.raises(ConfigError, match=rf"token store {folder} is damaged \(.*\): delete that fo") as error:
                TokenStore(folder)
            assert "\n" not in str(error.value) and path.name in str(error.value)
            path.write_bytes(contents)
    assert opened(corpus_config(tmp_path)).tokens.tolist() == [100, 101, 1, 102, 103, 1, 100, 101, 1]


def test_a_large_store_is_verified_once_a_month_and_after_each_change(tmp_path, large_stores, monkeypatch):
    folder = store_of(tmp_path, ["ab", "cd"]).folder
    read, verify = [], checksums.verify
    monkeypatch.setattr(checksums, "verify", lambda *args: (read.append(args), verify(*args)))

    TokenStore(folder)
    assert not read, "it was written here"
    os.utime(folder / "tokens.bin", (time.time() + 1,) * 2)
    TokenStore(folder)
    assert len(read) == 1
    [marker] = (tmp_path / "verified").iterdir()
    os.utime(marker, (time.time() + 2,) * 2)
    TokenStore(folder)
    assert len(read) == 1
    month_ago = time.time() - 31 * 24 * 3600
    os.utime(marker, (month_ago, month_ago))
    flip(folder / "digests.npy", 8 * 128)
    with pytest.raises(ConfigError, match=r"digests.npy differs from its checksum\): delete that folder"):
        TokenStore(folder)


def test_pieces_of_a_file_have_checksums_of_their_own(tmp_path, monkeypatch):
    """Pieces of 4 bytes; a store of an earlier commit has one checksum for a file of any size."""
    path = tmp_path / "file"
    for contents in (b"abcd", b"abcde", b"abcdefgh"):
        path.write_bytes(contents)
        whole = checksums.file_checksum(path)
        assert whole == hashlib.blake2b(contents, digest_size=16).hexdigest()
        meta = {"file_sizes": {"file": len(contents)}, "checksums": {"file": whole}}
        with monkeypatch.context() as patch:
            patch.setattr(checksums, "_PIECE_BYTES", 4)
            checksums.verify(tmp_path, meta)
            pieces = [contents[k : k + 4] for k in range(0, len(contents), 4)]
            expected = [hashlib.blake2b(piece, digest_size=16).hexdigest() for piece in pieces]
            meta["checksums"]["file"] = checksums.file_checksum(path)
            assert meta["checksums"]["file"] == "".join(expected)
            checksums.verify(tmp_path, meta)
            for byte in range(len(contents)):
                flip(path, 8 * byte)
                for piece in range(len(pieces)):
                    part = slice(piece, None, len(pieces))
                    with pytest.raises(ValueError, match="file differs") if byte // 4 == piece else nullcontext():
                        checksums.verify(tmp_path, meta, part)
                flip(path, 8 * byte)


def test_prepare_verifies(tmp_path, large_stores, capsys):
    store = store_of(tmp_path, ["ab", "cd"])
    flags = ["prepare", "--source=text", f"--path={tmp_path / 'text'}", f"--cache_dir={tmp_path / 'cache'}"]
    main([*flags, "--verify"])
    size = sum(path.stat().st_size for path in store.folder.iterdir() if path.name != "meta.json")
    assert f"verified         {size:,} bytes in 16 files\n" in capsys.readouterr().out
    flip(store.folder / "digests.npy", 8 * 128)
    main(flags)
    with pytest.raises(ConfigError, match=r"digests.npy differs from its checksum\): delete that folder"):
        main([*flags, "--verify"])
