"""Texts, tokenizers and token stores in buckets."""

import dataclasses
import gzip
import os
import pathlib
import shutil

import numpy as np
import pytest

from contract.errors import ConfigError
from data.sources import bucket_store
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from files import buckets, storage
from tests.bucket_server import BucketServer
from tests.data.corpus import corpus_config, store_of
from tests.data.record_files import write_examples, write_jsonl, write_parquet, zstd
from tests.data.tiny_tokenizers import gpt2

TEXTS = ["one two three\n", "four five\n", "six\n" * 50]


@pytest.fixture
def server(monkeypatch, tmp_path):
    """An object store with the texts under gs://test-bucket/text, and an empty home folder."""
    server = BucketServer("test-bucket")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    buckets._open.cache_clear()
    for number, text in enumerate(TEXTS):
        server.put("test-bucket", f"text/{number:03}.txt", text.encode())
    with server.running():
        yield server
    buckets._open.cache_clear()


def test_sources_in_a_bucket(server, tmp_path):
    """Copies on this machine have other names, and are decompressed as the names in the bucket say."""
    records, folder = [{"text": text} for text in TEXTS], "gs://test-bucket/records"
    write_jsonl(tmp_path / "a.jsonl", records)
    lines = (tmp_path / "a.jsonl").read_bytes()
    files = {"jsonl": [("a.jsonl.gz", gzip.compress(lines)), ("a.jsonl.zst", zstd(lines))]}
    for source, write in (("parquet", write_parquet), ("array_record", write_examples)):
        write(tmp_path / "a", records)
        files[source] = [(f"a.{source}", (tmp_path / "a").read_bytes())]
    for source, of_source in files.items():
        for name, contents in of_source:
            server.put("test-bucket", f"records/{name}", contents)
            store = opened(corpus_config(tmp_path, source=source, path=f"{folder}/{name}"))
            assert [store.tokens.size, store.names] == [sum(map(len, TEXTS)) + 3, [f"{folder}/{name}"]]
    server.put("test-bucket", "records/torn.parquet", files["parquet"][0][1][:-20])
    with pytest.raises(ConfigError, match=rf"^{folder}/torn\.parquet is not a whole parquet file"):
        opened(corpus_config(tmp_path, source="parquet", path=f"{folder}/torn.parquet"))


def opened(config):
    return open_or_build(config, make_tokenizer(config), progress=False)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_texts_and_stores_in_a_bucket(server, scheme, tmp_path, capsys, monkeypatch):
    """One machine builds the store and copies it to the bucket; another has it from there. Both verify it."""
    bucket = f"{scheme}://test-bucket"
    config = corpus_config(tmp_path, path=f"{bucket}/text", cache_dir=f"{bucket}/cache")
    first = opened(config)
    assert (
        capsys.readouterr().err == f"note: token store {first.folder}: copied to {bucket}/cache/{first.folder.name}\n"
    )
    assert first.content_digest == store_of(tmp_path, TEXTS).content_digest
    assert first.names == [f"{bucket}/text/{number:03}.txt" for number in range(3)]
    server.log.clear()
    assert opened(config).content_digest == first.content_digest
    assert capsys.readouterr().err == "", "the copy on this machine is used"
    assert not any("tokens.bin" in line for line in server.log)

    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setattr("data.store.store._build", pytest.fail)
    second = opened(config)
    assert "other" in str(second.folder) and "checksums verified" in capsys.readouterr().err
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert not list(tmp_path.glob("**/gs:*")) and not list(tmp_path.glob("**/s3:*"))


def test_a_changed_text_is_another_corpus_and_an_unchanged_one_is_not_transferred_again(server, tmp_path):
    config = corpus_config(tmp_path, path="gs://test-bucket/text/*.txt")
    first = opened(config)
    server.log.clear()
    assert opened(config).folder == first.folder
    copies = tmp_path / "cache" / "texts"
    assert len(list(copies.iterdir())) == 3
    server.put("test-bucket", "text/001.txt", b"changed\n")
    changed = opened(config)
    assert changed.folder != first.folder and changed.content_digest != first.content_digest
    assert len(list(copies.iterdir())) == 3, "the copy of the older version is deleted"


def test_the_folder_of_copies_is_listed_once_for_all_objects(server, tmp_path, monkeypatch):
    addresses = [f"gs://test-bucket/text/{number:03}.txt" for number in range(3)]
    first = bucket_store.local_copies(addresses, tmp_path / "copies")
    assert [pathlib.Path(path).read_text() for path, _ in first] == TEXTS
    lists = []
    for name in ("listdir", "scandir"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, function=function: lists.append(str(path)) or function(path))
    assert bucket_store.local_copies(addresses, tmp_path / "copies") == first
    assert lists == [str(tmp_path / "copies")]


def test_large_files_of_a_store_are_in_parts(server, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket_store, "PART_BYTES", 64)
    config = corpus_config(tmp_path, path="gs://test-bucket/text", cache_dir="gs://test-bucket/cache")
    first = opened(config)
    keys = buckets.keys("gs://test-bucket/cache")
    assert f"gs://test-bucket/cache/{first.folder.name}/tokens.bin.part00002" in keys
    shutil.rmtree(tmp_path / "home")
    np.testing.assert_array_equal(opened(config).tokens, np.array(first.tokens))


@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_a_damaged_store_in_a_bucket_is_one_line(server, tmp_path, damage):
    config = corpus_config(tmp_path, path="gs://test-bucket/text", cache_dir="gs://test-bucket/cache")
    name = opened(config).folder.name
    shutil.rmtree(tmp_path / "home")
    key = f"cache/{name}/tokens.bin"
    contents, _ = server.objects["test-bucket"].pop(key)
    if damage == "changed":
        server.put("test-bucket", key, bytes([contents[0] ^ 1]) + contents[1:])
    with pytest.raises(ConfigError, match=rf"token store gs://test-bucket/cache/{name} is damaged .*tokens\.bin"):
        opened(config)
    assert not list((tmp_path / "home").glob("**/tokens.bin"))


def test_a_store_whose_copy_to_the_bucket_was_interrupted_is_copied_again(server, tmp_path):
    config = corpus_config(tmp_path, path="gs://test-bucket/text", cache_dir="gs://test-bucket/cache")
    address = f"gs://test-bucket/cache/{opened(config).folder.name}"
    storage.remove(f"{address}/meta.json")
    opened(config)
    assert storage.is_file(f"{address}/meta.json")


def test_a_bucket_that_is_missing_or_closed_is_one_line_before_the_store_is_built(server, tmp_path, monkeypatch):
    monkeypatch.setattr("data.store.store._build", pytest.fail)
    config = corpus_config(tmp_path, path="gs://test-bucket/text", cache_dir="gs://no-such-bucket/cache")
    with pytest.raises(ConfigError, match=r"data\.cache_dir='gs://no-such-bucket/cache': .*there is no such bucket"):
        opened(config)
    for path in ("s3://no-such-bucket/text", "gs://no-such-bucket/text", "gs:/test-bucket", "ftp://host/x"):
        with pytest.raises(ConfigError, match=rf"data\.path='{path}'"):
            opened(dataclasses.replace(config, path=path))
    server.forbidden = True
    with pytest.raises(ConfigError, match=r"data\.cache_dir=.*this user has no access to the bucket"):
        opened(config)
    assert not list(tmp_path.glob("*:*"))


def test_a_tokenizer_in_a_bucket_is_the_local_one(server, tmp_path):
    pytest.importorskip("tokenizers")
    path = gpt2(tmp_path)
    server.put("test-bucket", "tok/tokenizer.json", pathlib.Path(path, "tokenizer.json").read_bytes())
    local = make_tokenizer(corpus_config(tmp_path, tokenizer=path))
    for name in ("gs://test-bucket/tok", "s3://test-bucket/tok/tokenizer.json"):
        assert make_tokenizer(corpus_config(tmp_path, tokenizer=name)).fingerprint == local.fingerprint
    with pytest.raises(ConfigError, match=r"data\.tokenizer='gs://test-bucket/none\.json'"):
        make_tokenizer(corpus_config(tmp_path, tokenizer="gs://test-bucket/none.json"))
