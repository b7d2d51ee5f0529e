"""The contents of a token store, by every writer, which is complete or absent: kills, races, damage."""

import dataclasses
import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import data.store.encode
import data.store.store
from contract.errors import ConfigError
from data.sources import open_source
from data.sources.filters import OFF
from data.store.checksums import sealed
from data.store.encode import Engine, encode_documents
from data.store.write import write_store
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config, opened, store_of, write_texts


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
    for array in (store.tokens, store.offsets, store.digests):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable


def test_files_that_macos_adds_to_a_folder_are_not_of_the_store(tmp_path):
    store = store_of(tmp_path, ["ab"])
    for name in ("._offsets.npy", ".DS_Store"):
        (store.folder / name).write_bytes(b"\0\5\x16\7Mac OS X")
    assert opened(corpus_config(tmp_path)).offsets.tolist() == [0, 3]


def test_a_store_of_prompts_and_labels_by_hand(tmp_path):
    lines = ['{"prompt": "ab", "response": "c"}', '{"text": "x", "label": "news"}', '{"text": "y"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    store = opened(corpus_config(tmp_path, source="jsonl", path=f"{tmp_path}/a.jsonl"))
    assert store.tokens.tolist() == [100, 101, 102, 1, 123, 1, 124, 1]
    assert store.offsets.tolist() == [0, 4, 6, 8]
    assert store.prompt_lengths.tolist() == [2, 0, 0] and store.prompt_lengths.dtype == np.int32
    assert [store.labels[i] for i in store.label_ids] == ["", "news", ""]
    assert store.meta["num_bytes"] == 5


def test_the_files_are_those_of_format_9(tmp_path):
    """A change of these files needs another store._FORMAT."""
    long = " ".join(f"w{k}" for k in range(300))
    store = store_of(tmp_path, [long, "bü", long.replace(" w7 ", " x "), "bü", " ", long[:700]])
    checksums = {name: checksum for name, checksum in store.meta["checksums"].items() if name != "names.json"}
    digest = hashlib.blake2b(json.dumps(checksums, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert (data.store.store._FORMAT, digest, store.content_digest) == (9, "5a33e0a2069665a9", "fee1b2b509d450b3")


@pytest.fixture(scope="module")
def many_texts(tmp_path_factory):
    """The config of a corpus of forty files of thirty lines: some are copies, one is empty, one is held out."""
    folder, chance = tmp_path_factory.mktemp("many"), random.Random(0)
    words = [f"word{k}" for k in range(500)]
    texts = []
    for k in range(40):
        lines = [" ".join(chance.choices(words, k=chance.randint(0, 30))) for _ in range(30)]
        texts.append("" if k == 7 else "\n".join([*lines, "the same line in every file"]))
    write_texts(folder, texts)
    write_texts(folder / "held", ["out\nthe same line in every file"])
    filters = dataclasses.replace(OFF, remove_duplicates="near", min_characters=10)
    return corpus_config(folder, document_per="line", heldout_path=f"{folder}/held/text", filters=filters)


def files_of(folder, corpus, workers):
    """The files of a store that `workers` processes encode: name -> contents."""
    folder.parent.mkdir(exist_ok=True)
    source, tokenizer = open_source(corpus), make_tokenizer(corpus)
    engine = Engine(functools.partial(encode_documents, workers=workers))
    write_store(folder, source, corpus, tokenizer, engine, progress=True)
    assert [path.name for path in folder.parent.iterdir()] == ["store"]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_does_not_depend_on_chunks_and_workers(many_texts, tmp_path, monkeypatch):
    whole = files_of(tmp_path / "whole" / "store", many_texts, 1)
    assert json.loads(whole["meta.json"])["removed"].keys() == {"min_characters", "exact_duplicates"}
    monkeypatch.setattr(data.store.encode, "_CHUNK_CHARACTERS", 3000)
    monkeypatch.setattr(data.store.encode, "_SMALL_BYTES", 0)
    monkeypatch.setattr("data.store.write._PIECE_TOKENS", 100)
    assert files_of(tmp_path / "chunks" / "store", many_texts, 1) == whole
    assert files_of(tmp_path / "workers" / "store", many_texts, 2) == whole


def test_a_killed_worker_is_one_line_and_leaves_nothing(many_texts, tmp_path, monkeypatch):
    monkeypatch.setattr(data.store.encode, "_SMALL_BYTES", 0)
    monkeypatch.setattr(data.store.encode, "encode_in_worker", _kill)
    with pytest.raises(ConfigError, match=r"^a worker process ended, as by the system where memory is too small: use"):
        files_of(tmp_path / "cache" / "store", many_texts, 2)
    assert not list((tmp_path / "cache").iterdir())


KILLED = """
import os, pathlib, signal, sys
from data.sources import open_source
from data.sources.source import Skipped
from data.store import encode
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config

encode._SMALL_BYTES = 0
corpus = corpus_config(pathlib.Path(sys.argv[1]))
chunks = encode.encode_documents(open_source(corpus), corpus, make_tokenizer(corpus), Skipped(), workers=2)
next(chunks)
print("encoded", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_where_the_command_was_killed(tmp_path):
    write_texts(tmp_path, ["ab"])
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    # Returns when all processes that have the pipe have ended, the workers too.
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"encoded\n")


def _kill(corpus, fingerprint, documents, first):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("texts", [["ab", "cd"], ["ab", "cx"], ["abc", "d"], ["cd", "ab"], ["ab", "cd", "cd"]])
def test_the_content_digest_depends_on_the_texts_alone(tmp_path, texts):
    first, second = store_of(tmp_path / "one", ["ab", "cd"]), store_of(tmp_path / "other", texts)
    assert first.folder.name != second.folder.name
    assert (first.content_digest == second.content_digest) == (texts == ["ab", "cd"])


def test_built_once_and_found_again(tmp_path, monkeypatch):
    store = store_of(tmp_path, ["ab"])
    monkeypatch.setattr(data.store.store, "write_store", None)  # building again would raise
    # A store does not depend on sentinels and mode tokens.
    found = opened(corpus_config(tmp_path, num_sentinels=500, mode_tokens=()))
    assert found.folder == store.folder
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [store.folder.name]


def test_another_store_when_its_contents_would_change(tmp_path):
    folders = [store_of(tmp_path, ["ab", "cd"]).folder]
    folders.append(opened(corpus_config(tmp_path, document_per="line")).folder)
    folders.append(opened(corpus_config(tmp_path, on_unreadable="skip")).folder)
    folders.append(opened(corpus_config(tmp_path, path=f"{tmp_path}/text/000.txt")).folder)
    (tmp_path / "text" / "000.txt").write_text("abc")
    changed = opened(corpus_config(tmp_path))
    assert len({*folders, changed.folder}) == 5
    assert changed.meta["num_bytes"] == 5


def test_an_unreadable_file_leaves_nothing_behind(tmp_path):
    write_texts(tmp_path, ["good", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        opened(corpus_config(tmp_path))
    assert list((tmp_path / "cache").iterdir()) == []
    assert opened(corpus_config(tmp_path, on_unreadable="skip")).meta["skipped_files"] == [f"{tmp_path}/text/001.txt"]


def test_cache_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for cache_dir in (f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with pytest.raises(ConfigError, match=rf"data\.cache_dir='{cache_dir}' cannot be written"):
            store_of(tmp_path, ["ab"], cache_dir=cache_dir)


def test_a_killed_build_is_not_used_as_a_store(tmp_path, monkeypatch):
    """All that a kill leaves is a folder of another name, which the next builds remove a day later."""
    write_texts(tmp_path, ["ab", "cd"])
    with monkeypatch.context() as killed:
        killed.setattr("data.store.write.sealed", _raise_interrupt)
        killed.setattr("data.store.write.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            opened(corpus_config(tmp_path))
    [left] = (tmp_path / "cache").iterdir()
    assert (left / "store" / "tokens.bin").stat().st_size == 12
    store = opened(corpus_config(tmp_path))
    assert store.tokens.tolist() == [100, 101, 1, 102, 103, 1] and left.exists()  # its build may still be running
    day = time.time() - 25 * 3600
    for path in (*left.rglob("*"), left):
        os.utime(path, (day, day))
    store.folder.rename(tmp_path / "elsewhere")
    assert opened(corpus_config(tmp_path)).folder == store.folder and not left.exists()


def _raise_interrupt(*_):
    raise KeyboardInterrupt


def test_builders_that_finish_at_the_same_time_all_get_the_store(tmp_path, monkeypatch):
    write_texts(tmp_path, ["ab", "cd"])
    together, seal = threading.Barrier(4), sealed

    def seal_and_wait(meta):
        together.wait(timeout=60)
        return seal(meta)

    monkeypatch.setattr("data.store.write.sealed", seal_and_wait)
    stores = []
    threads = [threading.Thread(target=lambda: stores.append(opened(corpus_config(tmp_path)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.tokens.tolist() for store in stores] == [[100, 101, 1, 102, 103, 1]] * 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [stores[0].folder.name]


def test_a_store_under_another_name_is_refused(tmp_path):
    one, other = store_of(tmp_path, ["ab"]).folder, store_of(tmp_path / "b", ["cd"], cache_dir=str(tmp_path / "cache"))
    one.rename(tmp_path / "gone")
    other.folder.rename(one)
    with pytest.raises(ConfigError, match=r"contains another corpus, the store .*, which was renamed: delete that"):
        opened(corpus_config(tmp_path))
