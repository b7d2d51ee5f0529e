"""Texts, tokenizers and token stores in buckets."""

import dataclasses
import gzip
import shutil

import numpy as np
import pytest

from contract.errors import ConfigError
from data.sources import files
from files.atomic import write_bytes
from files.paths import read_bytes, remove
from tests.data.corpus import corpus_config, opened, store_of
from tests.data.record_files import write_examples, write_jsonl, write_parquet, zstd

TEXTS = ["one two three\n", "four five\n", "six\n" * 50]


@pytest.fixture
def texts(bucket, monkeypatch, tmp_path):
    """A folder of a bucket with the texts under text/, and an empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for number, text in enumerate(TEXTS):
        write_bytes(f"{bucket}/text/{number:03}.txt", text.encode())
    return bucket


def test_sources_in_a_bucket(bucket, tmp_path):
    """Copies on this machine have other names, and are decompressed as the names in the bucket say."""
    records = [{"text": text} for text in TEXTS]
    write_jsonl(tmp_path / "a.jsonl", records)
    lines = (tmp_path / "a.jsonl").read_bytes()
    files = {"jsonl": [("a.jsonl.gz", gzip.compress(lines)), ("a.jsonl.zst", zstd(lines))]}
    for source, write in (("parquet", write_parquet), ("array_record", write_examples)):
        write(tmp_path / "a", records)
        files[source] = [(f"a.{source}", (tmp_path / "a").read_bytes())]
    for source, of_source in files.items():
        for name, contents in of_source:
            write_bytes(f"{bucket}/{name}", contents)
            store = opened(corpus_config(tmp_path, source=source, path=f"{bucket}/{name}"))
            assert [store.tokens.size, store.names] == [sum(map(len, TEXTS)) + 3, [f"{bucket}/{name}"]]
    write_bytes(f"{bucket}/torn.parquet", files["parquet"][0][1][:-20])
    with pytest.raises(ConfigError, match=rf"^{bucket}/torn\.parquet is not a whole parquet file"):
        opened(corpus_config(tmp_path, source="parquet", path=f"{bucket}/torn.parquet"))


def test_texts_and_stores_in_a_bucket(texts, tmp_path, capsys, monkeypatch):
    """One machine builds the store and copies it to the bucket; another has it from there. Both verify it."""
    config = corpus_config(tmp_path, path=f"{texts}/text", cache_dir=f"{texts}/cache")
    first = opened(config)
    assert capsys.readouterr().err == f"note: token store {first.folder}: copied to {texts}/cache/{first.folder.name}\n"
    assert first.content_digest == store_of(tmp_path, TEXTS).content_digest
    assert first.names == [f"{texts}/text/{number:03}.txt" for number in range(3)]
    assert opened(config).content_digest == first.content_digest
    assert capsys.readouterr().err == "", "the copy on this machine is used"

    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setattr("data.store.store.write_store", pytest.fail)
    second = opened(config)
    assert "other" in str(second.folder) and "checksums verified" in capsys.readouterr().err
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert not list(tmp_path.glob("**/gs:*")) and not list(tmp_path.glob("**/s3:*"))


def test_a_changed_text_is_another_corpus_and_an_unchanged_one_is_not_transferred_again(texts, tmp_path, monkeypatch):
    config = corpus_config(tmp_path, path=f"{texts}/text/*.txt")
    first = opened(config)
    with monkeypatch.context() as patch:
        patch.setattr(files, "copy_file", pytest.fail)
        assert opened(config).folder == first.folder
    copies = tmp_path / "cache" / "texts"
    assert len(list(copies.iterdir())) == 3
    write_bytes(f"{texts}/text/001.txt", b"changed\n")
    changed = opened(config)
    assert changed.folder != first.folder and changed.content_digest != first.content_digest
    assert len(list(copies.iterdir())) == 3, "the copy of the older version is deleted"


def test_a_folder_that_somebody_else_names_gets_no_copy_of_texts(texts, tmp_path):
    corpus = corpus_config(tmp_path, path=f"{texts}/text", cache_dir=str(tmp_path / "theirs"))
    store = opened(corpus, new_store_dir=str(tmp_path / "ours"))
    assert store.folder.parent == tmp_path / "ours" and (tmp_path / "ours" / "texts").is_dir()
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_a_damaged_store_in_a_bucket_is_one_line(texts, tmp_path, damage):
    config = corpus_config(tmp_path, path=f"{texts}/text", cache_dir=f"{texts}/cache")
    address = f"{texts}/cache/{opened(config).folder.name}"
    shutil.rmtree(tmp_path / "home")
    contents = read_bytes(f"{address}/tokens.bin")
    remove(f"{address}/tokens.bin")
    if damage == "changed":
        write_bytes(f"{address}/tokens.bin", bytes([contents[0] ^ 1]) + contents[1:])
    with pytest.raises(ConfigError, match=rf"token store {address} is damaged .*tokens\.bin"):
        opened(config)
    assert not list((tmp_path / "home").glob("**/tokens.bin"))


def test_the_tokens_of_a_store_are_read_by_range(texts, tmp_path):
    """tests/data/test_ranges.py has the rest, on a faster bucket."""
    config = corpus_config(tmp_path, path=f"{texts}/text", cache_dir=f"{texts}/cache")
    copied = opened(config)
    whole = np.array(copied.tokens)  # whose file is deleted below
    shutil.rmtree(tmp_path / "home")
    tokens = opened(config, by_range=True).tokens
    assert not list((tmp_path / "home").glob("**/tokens.bin"))
    np.testing.assert_array_equal(tokens[np.arange(20)], whole[:20])
    for theirs, begin in zip(tokens.read(np.arange(5), np.arange(5)), range(5), strict=True):
        np.testing.assert_array_equal(theirs, whole[begin : 2 * begin])
    address = f"{texts}/cache/{copied.folder.name}/tokens.bin"
    contents = read_bytes(address)
    assert read_bytes(f"{address.removesuffix('tokens.bin')}verified.txt")
    remove(address)
    write_bytes(address, contents[::-1])
    with pytest.raises(ConfigError, match=f"{address} was replaced"):
        tokens[:5]
    with pytest.raises(ConfigError, match=r"is damaged .*tokens\.bin differs"):
        opened(config, by_range=True)


def test_a_bucket_that_is_missing_is_one_line_before_the_store_is_built(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("data.store.store.write_store", pytest.fail)
    config = corpus_config(tmp_path, path=f"{texts}/text", cache_dir="gs://no-such-bucket/cache")
    with pytest.raises(ConfigError, match=r"data\.cache_dir='gs://no-such-bucket/cache': there is no bucket"):
        opened(config)
    for path in ("s3://no-such-bucket/text", "gs:/test-bucket", "ftp://host/x"):
        with pytest.raises(ConfigError, match=rf"data\.path='{path}'"):
            opened(dataclasses.replace(config, cache_dir=str(tmp_path), path=path))
    assert not list(tmp_path.glob("*:*"))
