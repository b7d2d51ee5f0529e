"""The contents of a token store, and that it is complete or absent: kills, races, damage, changed inputs."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import data.store.build
import numpy as np
import pytest

import data.store.store
from contract.errors import ConfigError
from data.store.store import TokenStore, open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from files.verification import sealed
from tests.data.corpus import corpus_config, store_of, write_texts


def build(corpus):
    return open_or_build(corpus, make_tokenizer(corpus))


def test_store_by_hand(tmp_path):
    store = store_of(tmp_path, ["ab", " \n", "b"])
    assert store.tokens.tolist() == [100, 101, 1, 101, 1] and store.tokens.dtype == np.uint16
    assert store.offsets.tolist() == [0, 3, 5] and store.offsets.dtype == np.int64
    assert [Path(store.names[i]).name for i in store.name_ids] == ["000.txt", "002.txt"]
    assert np.flatnonzero(store.unigram_counts).tolist() == [100, 101]
    assert store.unigram_counts[[100, 101]].tolist() == [1, 2]
    assert len(store) == 2 and store.meta["num_bytes"] == 3 and store.meta["skipped_empty"] == 1
    # a once, b twice: -(1/3 log 1/3 + 2/3 log 2/3)
    assert store.unigram_entropy() == pytest.approx(0.636514, abs=1e-6)


def test_files_are_those_of_earlier_versions(tmp_path):
    """Version 8 wrote them in one pass. A change of these files needs another store._FORMAT."""
    long = " ".join(f"w{k}" for k in range(300))
    store = store_of(tmp_path, [long, "bü", long.replace(" w7 ", " x "), "bü", " ", long[:700]])
    checksums = {name: checksum for name, checksum in store.meta["checksums"].items() if name != "names.json"}
    digest = hashlib.blake2b(json.dumps(checksums, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert (data.store.store._FORMAT, digest, store.content_digest) == (8, "5a33e0a2069665a9", "fee1b2b509d450b3")


def test_arrays_are_memory_maps(tmp_path):
    store = store_of(tmp_path, ["ab"])
    for array in (store.tokens, store.offsets, store.digests):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable


def test_many_flushes_give_the_same_store(tmp_path, monkeypatch):
    texts = [chr(97 + i % 26) * (i % 7 + 1) for i in range(50)]
    whole = store_of(tmp_path, texts)
    monkeypatch.setattr("data.store.shard._FLUSH_TOKENS", 5)
    pieces = store_of(tmp_path, texts, cache_dir=str(tmp_path / "other"))
    assert pieces.tokens.tolist() == whole.tokens.tolist()
    assert pieces.unigram_counts.tolist() == whole.unigram_counts.tolist()


@pytest.mark.parametrize("texts", [["ab", "cd"], ["ab", "cx"], ["abc", "d"], ["cd", "ab"], ["ab", "cd", "cd"]])
def test_the_content_digest_depends_on_the_texts_alone(tmp_path, texts, monkeypatch):
    first = store_of(tmp_path / "one", ["ab", "cd"])
    monkeypatch.setattr("data.store.shard._FLUSH_TOKENS", 1)
    second = store_of(tmp_path / "other", texts)
    assert first.folder.name != second.folder.name
    assert (first.content_digest == second.content_digest) == (texts == ["ab", "cd"])


def test_equal_texts_have_equal_digests(tmp_path):
    digests = store_of(tmp_path, ["same", "other", "same"]).digests
    assert digests[0] == digests[2] != digests[1]


def test_built_once_and_found_again(tmp_path, monkeypatch):
    store = store_of(tmp_path, ["ab"])
    monkeypatch.setattr(data.store.store, "build_store", None)  # building again would raise
    assert build(corpus_config(tmp_path)).folder == store.folder
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [store.folder.name]


def test_another_store_when_its_contents_would_change(tmp_path):
    folders = [store_of(tmp_path, ["ab", "cd"]).folder]
    folders.append(build(corpus_config(tmp_path, document_per="line")).folder)
    folders.append(build(corpus_config(tmp_path, on_unreadable="skip")).folder)
    folders.append(build(corpus_config(tmp_path, path=f"{tmp_path}/text/000.txt")).folder)
    folders.append(build(corpus_config(tmp_path, source="stdlib", path="")).folder)
    (tmp_path / "text" / "000.txt").write_text("abc")
    changed = build(corpus_config(tmp_path))
    assert len({*folders, changed.folder}) == 6
    assert changed.meta["num_bytes"] == 5


def test_a_store_does_not_depend_on_sentinels_and_mode_tokens(tmp_path):
    store = store_of(tmp_path, ["ab"])
    assert build(corpus_config(tmp_path, num_sentinels=500, mode_tokens=())).folder == store.folder


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_of(tmp_path, ["ab"], cache_dir="~/cache").folder.parent == tmp_path / "cache"


@pytest.mark.parametrize("texts", [[""], ["  \n", "\t"]])
def test_a_corpus_without_text_leaves_nothing_behind(tmp_path, texts):
    with pytest.raises(ConfigError, match=rf"contains no document with text \(skipped {len(texts)} empty documents"):
        store_of(tmp_path, texts)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unreadable_file_leaves_nothing_behind(tmp_path):
    write_texts(tmp_path, ["good", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        build(corpus_config(tmp_path))
    assert list((tmp_path / "cache").iterdir()) == []
    assert build(corpus_config(tmp_path, on_unreadable="skip")).meta["skipped_files"] == [f"{tmp_path}/text/001.txt"]


def test_cache_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for cache_dir in (f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with pytest.raises(ConfigError, match=rf"data\.cache_dir='{cache_dir}' cannot be written"):
            store_of(tmp_path, ["ab"], cache_dir=cache_dir)


KILLED = """
import os, signal, sys
import data.assembly
from data.filters import OFF
from data.config import CorpusConfig
from data.store import open_or_build
from data.verification import sealed
from data.tokenizer import make_tokenizer
data.store.assembly._write_json = lambda path, value: os.kill(os.getpid(), signal.SIGKILL)
corpus = CorpusConfig(source="text", heldout_path="", document_per="file", text_key="text",
                      on_unreadable="error", tokenizer="byte",
                      num_sentinels=0, mode_tokens=(), append_special_tokens=True, decoder_start_token="pad",
                      path=sys.argv[1], cache_dir=sys.argv[2], filters=OFF)
open_or_build(corpus, make_tokenizer(corpus))
"""


def test_a_killed_build_is_not_used_as_a_store(tmp_path):
    write_texts(tmp_path, ["ab", "cd"])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "text"), str(tmp_path / "cache")]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    [left] = (tmp_path / "cache").iterdir()
    assert (left / "store" / "tokens.bin").stat().st_size == 12
    assert build(corpus_config(tmp_path)).tokens.tolist() == [100, 101, 1, 102, 103, 1]
    assert left.exists()  # its build may still be running


def test_the_folders_of_killed_builds_are_removed_after_a_day(tmp_path):
    folder = store_of(tmp_path, ["ab"]).folder
    day = time.time() - 25 * 3600
    for name, when in {"old": day, "running": None}.items():
        building = folder.parent / f".{folder.name}-{name}"
        building.mkdir()
        (building / "tokens.bin").write_bytes(b"x")
        if when:
            os.utime(building / "tokens.bin", (when, when))
        os.utime(building, (day, day))
    folder.rename(tmp_path / "elsewhere")
    assert build(corpus_config(tmp_path)).folder == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == [f".{folder.name}-running", folder.name]


def test_builders_that_finish_at_the_same_time_all_get_the_store(tmp_path, monkeypatch):
    write_texts(tmp_path, ["ab", "cd"])
    together, assemble = threading.Barrier(4), data.store.build.assemble

    def assemble_and_wait(*args, **kwargs):
        assemble(*args, **kwargs)
        together.wait(timeout=20)

    monkeypatch.setattr(data.store.build, "assemble", assemble_and_wait)
    stores = []
    threads = [threading.Thread(target=lambda: stores.append(build(corpus_config(tmp_path)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.tokens.tolist() for store in stores] == [[100, 101, 1, 102, 103, 1]] * 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [stores[0].folder.name]


def cut_short(folder):
    os.truncate(folder / "tokens.bin", 4)


def lose_offsets(folder):
    (folder / "offsets.npy").unlink()


def lose_meta(folder):
    (folder / "meta.json").unlink()


def garble_meta(folder):
    (folder / "meta.json").write_text("{")


def lose_name(folder):
    fields = json.loads((folder / "meta.json").read_text())
    meta = {name: value for name, value in fields.items() if name not in ("name", "meta_checksum")}
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))


@pytest.mark.parametrize("damage", [cut_short, lose_offsets, lose_meta, garble_meta, lose_name])
def test_a_damaged_store_is_refused(tmp_path, damage):
    folder = store_of(tmp_path, ["ab", "cd"]).folder
    damage(folder)
    with pytest.raises(ConfigError, match=rf"token store {folder} is damaged \(.*\): delete that folder") as error:
        build(corpus_config(tmp_path))
    assert "\n" not in str(error.value)


def test_meta_is_what_prepare_prints(tmp_path):
    store = store_of(tmp_path, ["ab", "é"])
    meta = json.loads((store.folder / "meta.json").read_text())
    sizes, checksums = meta.pop("file_sizes"), meta.pop("checksums")
    assert meta.pop("meta_checksum") and checksums.keys() == sizes.keys()
    assert meta.pop("content_digest") == store.content_digest and meta.pop("name") == store.folder.name
    assert meta == {
        "dtype": "uint16",
        "num_documents": 2,
        "cut": "file",
        "num_tokens": 6,
        "num_bytes": 4,
        "num_unknown": 0,
        "near_duplicates_searched": True,
        "sampled_texts": 2,
        "changed_texts": [],
        "skipped_empty": 0,
        "skipped_files": [],
        "skipped_lines": 0,
        "first_skipped_line": "",
        "filters": {},
        "removed": {},
        "bytes_before_filters": {"2": 2},
        "bytes_of_documents": {"2": 2},
        "tokens_of_documents": {"2": 2},
    }
    assert sizes["tokens.bin"] == 12 and set(sizes) == {path.name for path in store.folder.iterdir()} - {"meta.json"}
    assert TokenStore(store.folder).meta["num_tokens"] == 6
