"""Compressed corpora: the same documents as the plain files, and an error for every damaged byte."""

import bz2
import gzip
import json
import re
import tracemalloc

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.compressed import open_contents
from data.sources.raw import Skipped
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config
from tests.data.record_files import zstd

COMPRESS = {".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress}
TEXT = "".join(f"Line {i} of the text, and é.\n" + "\n" * (i % 3) for i in range(200)).encode()
LINES = "".join(json.dumps({"text": f"Text {i}\n", "label": "ab"[i % 2]}) + "\n" for i in range(50)).encode()


def corpus_of(tmp_path, name, contents, **changes):
    (tmp_path / name).write_bytes(contents)
    source = "jsonl" if "jsonl" in name else "text"
    return corpus_config(tmp_path, **({"source": source, "path": str(tmp_path / name)} | changes))


def documents_of(corpus, skipped=None):
    return list(open_source(corpus).documents(skipped or Skipped()))


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(
    ("name", "contents", "document_per"),
    [("a.txt", TEXT, "line"), ("a.txt", TEXT, "paragraph"), ("a.txt", TEXT, "file"), ("a.jsonl", LINES, "file")],
)
def test_the_store_is_that_of_the_plain_file(tmp_path, ending, name, contents, document_per):
    compress = COMPRESS[ending]
    half = len(contents) // 2
    digests = []
    # Files of several streams are what pigz, pzstd and bgzip write.
    for stored in (contents, compress(contents), compress(contents[:half]) + compress(contents[half:])):
        corpus = corpus_of(tmp_path, name + ending * (stored != contents), stored, document_per=document_per)
        digests.append(open_or_build(corpus, make_tokenizer(corpus)).content_digest)
    assert digests[0] == digests[1] == digests[2]


@pytest.mark.parametrize("ending", COMPRESS)
def test_lines_of_invalid_json_have_their_number(tmp_path, ending):
    corpus = corpus_of(tmp_path, f"a.jsonl{ending}", COMPRESS[ending](LINES + b"\n{\n"))
    with pytest.raises(ConfigError, match=re.escape(f"a.jsonl{ending}:52 is not JSON (")):
        documents_of(corpus)


@pytest.mark.parametrize("ending", COMPRESS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_damage_makes_a_corpus_shorter(tmp_path_factory, ending, data):
    tmp_path = tmp_path_factory.mktemp("damaged")
    whole = COMPRESS[ending](LINES)
    damaged = bytearray(whole)
    kind = data.draw(st.sampled_from(["cut off", "flipped", "trailing"]))
    if kind == "cut off":
        del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
    elif kind == "trailing":
        damaged += data.draw(st.binary(min_size=1, max_size=9))
    else:
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    corpus = corpus_of(tmp_path, f"a.jsonl{ending}", bytes(damaged))
    try:
        documents = documents_of(corpus)
    except ConfigError as error:
        assert "\n" not in str(error) and f"{tmp_path}/a.jsonl{ending}" in str(error)
        skipped = Skipped()
        skipping = corpus_config(tmp_path, source="jsonl", path=corpus.path, on_unreadable="skip")
        assert documents_of(skipping, skipped) == [] or skipped.lines
        assert skipped.files == [corpus.path] or skipped.lines
    else:
        assert kind == "flipped" and len(documents) == 50  # a flag or a time in the header


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_is_damaged_is_named(tmp_path, ending):
    for contents, reason in ((b"", "the file is empty"), (COMPRESS[ending](TEXT)[:-9], "Truncated compressed stream")):
        corpus = corpus_of(tmp_path, f"a.txt{ending}", contents)
        message = re.escape(f"a.txt{ending} cannot be read (its ") + rf"\w+ data is damaged: {reason}\): fix the file"
        with pytest.raises(ConfigError, match=message):
            documents_of(corpus)


def test_memory_does_not_grow_with_the_file(tmp_path):
    (tmp_path / "a.zst").write_bytes(zstd(b"one line of text\n" * 1_000_000))
    tracemalloc.start()
    with open_contents(str(tmp_path / "a.zst")) as file:
        assert sum(1 for _ in file) == 1_000_000
    assert tracemalloc.get_traced_memory()[1] < 4e6 and pyarrow.total_allocated_bytes() < 4e6
    tracemalloc.stop()
