"""Finding and reading text: what is read, in which order, compressed or not, and the error for each invalid input."""

import bz2
import dataclasses
import gzip
import json
import os
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import files, open_source
from data.sources.files import File, file_digest, find_files
from data.sources.source import RawDocument, Skipped
from data.sources.stdlib import documented_functions
from tests.data.corpus import corpus_config, opened, read, write_texts
from tests.data.record_files import zstd


def texts(corpus):
    return [document.text for document in read(corpus)[0]]


def test_stdlib_is_the_library_and_nothing_else(tmp_path):
    corpus = corpus_config(tmp_path, source="stdlib", path="")
    source = open_source(corpus)
    documents, _ = read(corpus)
    names = [document.name for document in documents]
    assert names == sorted(names) and len(names) == len(set(names))
    assert {"json/decoder.py", "argparse.py"} <= set(names)
    assert not [name for name in names if {"site-packages", "test", "tests", "idle_test"} & set(name.split("/"))]
    with open(os.__file__, encoding="utf-8", newline="") as file:
        by_name = {document.name: document for document in documents}
        digest = file_digest(File("os.py", os.__file__))
        assert by_name["os.py"] == RawDocument("os.py", file.read(), file_digest=digest)
    labels = {document.name: document.label for document in documents}
    assert labels["json/decoder.py"] == "json" and labels["xml/dom/minidom.py"] == "xml"
    total = sum(len(document.text.encode()) for document in documents)
    assert 8e6 < total <= source.num_bytes < 20e6


@pytest.mark.parametrize(("name", "hint"), [("stdlb", r"; did you mean 'stdlib'\?"), ("orc", "")])
def test_unknown_sources(tmp_path, name, hint):
    names = "'stdlib', 'stdlib_functions', 'gym', 'text', 'jsonl', 'parquet', 'array_record', 'tfds', 'hf'"
    message = rf"^data\.source='{name}' must be one of {names}{hint}$"
    with pytest.raises(ConfigError, match=message):
        open_source(corpus_config(tmp_path, source=name))


def test_lines_end_at_newlines_only(tmp_path):
    write_texts(tmp_path, ["a\r\n\n b\x0c\u2028c \n   \nlast", "\nx\n"])
    documents, skipped = read(corpus_config(tmp_path, document_per="line"))
    assert [document.text for document in documents] == ["a", " b\x0c\u2028c ", "last", "x"]
    assert [os.path.basename(document.name) for document in documents] == ["000.txt"] * 3 + ["001.txt"]
    assert skipped.empty == 3  # two in the first file, one in the second


def test_paragraphs_are_blocks_between_blank_lines(tmp_path):
    write_texts(tmp_path, ["\n\na\n  b\n \t\n\nc\r\n\r\nd\n"])
    assert texts(corpus_config(tmp_path, document_per="paragraph")) == ["a\n  b", "c", "d"]


def test_folders_globs_and_files_each_file_once_without_hidden_files(tmp_path):
    root = tmp_path / "text"
    for name in ["b/2.md", "b/1.txt", "a.txt", ".hidden", ".git/x", "b/.swp", "c/3.json"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    assert texts(corpus_config(tmp_path)) == ["a.txt", "b/1.txt", "b/2.md", "c/3.json"]
    path = f"{root}/c, {root}/**/*.txt,{root}/b"
    assert texts(corpus_config(tmp_path, path=path)) == ["c/3.json", "a.txt", "b/1.txt", "b/2.md"]
    assert texts(corpus_config(tmp_path, path=f"{root}/.hidden")) == [".hidden"]


def test_a_file_that_links_name_too_is_read_once(tmp_path):
    root = tmp_path / "text"
    for name in ["v1/a.txt", "v1/b.txt"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for link, target in {"latest": "v1", "self": ".", "v1/c.txt": "a.txt"}.items():
        (root / link).symlink_to(target)
    assert texts(corpus_config(tmp_path)) == ["v1/a.txt", "v1/b.txt"]
    assert texts(corpus_config(tmp_path, path=f"{root}/v1,{root}/latest/b.txt")) == ["v1/a.txt", "v1/b.txt"]
    (root / "z").symlink_to("old/v2")
    (root / "old/v2").mkdir(parents=True)
    (root / "old/v2/d.txt").write_text("")
    names = ["latest/a.txt", "latest/b.txt", "old/v2/d.txt"]
    assert find_files(str(root)) == [f"{root}/{name}" for name in names], "the first name in the order of names"


def test_the_path_of_each_folder_is_resolved_once_and_not_that_of_each_file(tmp_path, monkeypatch):
    write_texts(tmp_path, [f"text {i}" for i in range(50)])
    resolved = []
    monkeypatch.setattr(files, "real_path", lambda path: resolved.append(path) or os.path.realpath(path))
    assert len(find_files(f"{tmp_path}/text")) == 50 and len(resolved) <= 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "data.source='text' reads data.path, which is empty: set data.path"),
        ("{0}/missing", "data.path='{0}/missing' does not exist"),
        ("{0}/text,{0}/missing", "data.path='{0}/missing' does not exist"),
        ("{0}/*.none", "data.path='{0}/*.none' does not exist"),
        ("missing", f"data.path='missing' does not exist in the current folder, {os.getcwd()}: name files"),
        ("{0}/void", "data.path='{0}/void' contains no file"),
    ],
)
def test_paths_that_name_nothing(tmp_path, path, message):
    write_texts(tmp_path, ["a"])
    (tmp_path / "void").mkdir()
    with pytest.raises(ConfigError, match=re.escape(message.format(tmp_path))):
        open_source(corpus_config(tmp_path, path=path.format(tmp_path)))


@pytest.mark.parametrize("document_per", ["file", "line", "paragraph"])
def test_a_file_that_is_not_utf8_is_an_error_or_skipped_whole(tmp_path, document_per):
    write_texts(tmp_path, ["good", "", "good too"])
    bad = tmp_path / "text" / "001.txt"
    bad.write_bytes(b"fine\n\nso far \xff\xfe")
    with pytest.raises(ConfigError, match=re.escape(f"{bad} is not UTF-8 (byte 13): ")):
        read(corpus_config(tmp_path, document_per=document_per))
    documents, skipped = read(corpus_config(tmp_path, document_per=document_per, on_unreadable="skip"))
    assert [document.text for document in documents] == ["good", "good too"]
    assert skipped.files == [str(bad)]


def test_parts_are_read_one_by_one_in_other_processes(tmp_path):
    write_texts(tmp_path, ["a", "", "b\n\nc"])
    corpus = corpus_config(tmp_path, document_per="paragraph", heldout_path=str(tmp_path / "other.txt"))
    (tmp_path / "other.txt").write_text("d")
    parts = pickle.loads(pickle.dumps(open_source(corpus))).parts
    assert [os.path.basename(part.name) for part in parts] == ["000.txt", "001.txt", "002.txt", "other.txt"]
    assert [part.num_bytes for part in parts] == [1, 0, 4, 1]
    read_backwards = [[document.text for document in part.read(Skipped())] for part in reversed(parts)]
    assert read_backwards == [["d"], ["b", "c"], [], ["a"]]
    assert [document.is_heldout for document in read(corpus)[0]] == [False, False, False, True]


COMPRESS = {".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress}


def compressed(tmp_path, name, contents, **changes):
    """The corpus of a file with these contents."""
    (tmp_path / name).write_bytes(contents)
    source = "jsonl" if "jsonl" in name else "text"
    return corpus_config(tmp_path, source=source, path=str(tmp_path / name), **changes)


TEXT = "".join(f"Line {i} of the text, and é.\n" + "\n" * (i % 3) for i in range(200)).encode()


LINES = "".join(json.dumps({"text": f"Text {i}\n", "label": "ab"[i % 2]}) + "\n" for i in range(50)).encode()


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
        corpus = compressed(tmp_path, name + ending * (stored != contents), stored, document_per=document_per)
        digests.append(opened(corpus).content_digest)
    assert digests[0] == digests[1] == digests[2]


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
    corpus = compressed(tmp_path, f"a.jsonl{ending}", bytes(damaged))
    try:
        documents, _ = read(corpus)
    except ConfigError as error:
        assert "\n" not in str(error) and f"{tmp_path}/a.jsonl{ending}" in str(error)
        documents, skipped = read(dataclasses.replace(corpus, on_unreadable="skip"))
        assert documents == [] or skipped.lines
        assert skipped.files == [corpus.path] or skipped.lines
    else:
        assert kind == "flipped" and len(documents) == 50  # a flag or a time in the header


def test_a_stream_that_pyarrow_cannot_read_is_one_line_or_skipped(tmp_path):
    contents = b"".join(map(bz2.compress, [b"a\n", b"", b"b\n"]))  # PyArrow's error is no OSError
    corpus = compressed(tmp_path, "a.txt.bz2", contents, document_per="line")
    with pytest.raises(ConfigError, match=r"a\.txt\.bz2 cannot be read \(.*\): fix the file"):
        read(corpus)
    documents, skipped = read(dataclasses.replace(corpus, on_unreadable="skip"))
    assert (documents, skipped.files) == ([], [corpus.path])


MODULE = '''\
"""A module's docstring is no function's."""
\x0c
class C:
    """Nor a class's."""

    @property
    async def f(self,
                x):
        """Says f.

        Twice.
        """
        # why
        def inside():
            """Not on its own."""
            return 1

        return "\\n"
    def bare(self):
        return 2


if True:
    def g(): "one line"; return 3
    def only():
        """Nothing follows."""
    def h():
        "h"

        return 4
'''


def test_functions_by_hand():
    assert list(documented_functions(MODULE)) == [
        (
            'async def f(self,\n            x):\n    """Says f.\n\n    Twice.\n    """\n',
            '    # why\n    def inside():\n        """Not on its own."""\n        return 1\n\n    return "\\n"\n',
        ),
        ('def h():\n    "h"\n', "\n    return 4\n"),
    ]
