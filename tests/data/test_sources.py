"""Finding and reading text: what is read, in which order, and the error for each invalid input."""

import os
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.files import file_digest, split_text
from data.sources.raw import RawDocument, Skipped
from tests.data.corpus import corpus_config, write_texts


def read(corpus):
    skipped = Skipped()
    return list(open_source(corpus).documents(skipped)), skipped


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
        assert by_name["os.py"] == RawDocument("os.py", file.read(), file_digest=file_digest(os.__file__))
    labels = {document.name: document.label for document in documents}
    assert labels["json/decoder.py"] == "json" and labels["xml/dom/minidom.py"] == "xml"
    total = sum(len(document.text.encode()) for document in documents)
    assert 8e6 < total <= source.num_bytes < 20e6


@pytest.mark.parametrize(("name", "hint"), [("stdlb", r"; did you mean 'stdlib'\?"), ("orc", "")])
def test_unknown_sources(tmp_path, name, hint):
    names = "'stdlib', 'stdlib_functions', 'text', 'jsonl', 'parquet', 'array_record', 'tfds', 'hf'"
    message = rf"^data\.source='{name}' must be one of {names}{hint}$"
    with pytest.raises(ConfigError, match=message):
        open_source(corpus_config(tmp_path, source=name))


def test_stdlib_refuses_a_path(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path='x' is not read by data\.source='stdlib'"):
        open_source(corpus_config(tmp_path, source="stdlib", path="x"))


def test_a_file_is_read_byte_for_byte(tmp_path):
    write_texts(tmp_path, ["\ufeffa\r\n\n b\x0c\u2028c "])
    assert texts(corpus_config(tmp_path)) == ["\ufeffa\r\n\n b\x0c\u2028c "]


def test_lines_end_at_newlines_only(tmp_path):
    write_texts(tmp_path, ["a\r\n\n b\x0c\u2028c \n   \nlast", "\nx\n"])
    documents, skipped = read(corpus_config(tmp_path, document_per="line"))
    assert [document.text for document in documents] == ["a", " b\x0c\u2028c ", "last", "x"]
    assert [os.path.basename(document.name) for document in documents] == ["000.txt"] * 3 + ["001.txt"]
    assert skipped.empty == 3  # two in the first file, one in the second


def test_paragraphs_are_blocks_between_blank_lines(tmp_path):
    write_texts(tmp_path, ["\n\na\n  b\n \t\n\nc\r\n\r\nd\n"])
    assert texts(corpus_config(tmp_path, document_per="paragraph")) == ["a\n  b", "c", "d"]


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet="ab \n\r"))
def test_paragraphs_keep_every_line_that_is_not_blank(text):
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    assert [line for block in split_text(text, "paragraph") for line in block.split("\n")] == lines


def test_folders_globs_and_files_each_file_once_without_hidden_files(tmp_path):
    root = tmp_path / "text"
    for name in ["b/2.md", "b/1.txt", "a.txt", ".hidden", ".git/x", "b/.swp", "c/3.json"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    assert texts(corpus_config(tmp_path)) == ["a.txt", "b/1.txt", "b/2.md", "c/3.json"]
    path = f"{root}/c, {root}/**/*.txt,{root}/b"
    assert texts(corpus_config(tmp_path, path=path)) == ["c/3.json", "a.txt", "b/1.txt", "b/2.md"]
    assert texts(corpus_config(tmp_path, path=f"{root}/.hidden")) == [".hidden"]


def test_linked_folders_are_read_and_loops_end(tmp_path):
    write_texts(tmp_path, ["a"])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("b")
    (tmp_path / "text" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "text")
    assert sorted(texts(corpus_config(tmp_path))) == ["a", "b"]


def test_home_is_expanded(tmp_path, monkeypatch):
    write_texts(tmp_path, ["a"])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts(corpus_config(tmp_path, path="~/text")) == ["a"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "data.source='text' reads data.path, which is empty: set data.path"),
        ("{0}/missing", "data.path='{0}/missing' does not exist"),
        ("{0}/text,{0}/missing", "data.path='{0}/missing' does not exist"),
        ("{0}/*.none", "data.path='{0}/*.none' matches no file"),
        ("{0}/void", "data.path='{0}/void' contains no regular file"),
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


def test_a_character_cut_off_at_the_end_of_a_file(tmp_path):
    write_texts(tmp_path, ["x"])
    (tmp_path / "text" / "000.txt").write_bytes(b"ab\xc3")
    with pytest.raises(ConfigError, match=r"byte 2"):
        read(corpus_config(tmp_path, document_per="line"))


def test_a_broken_link_is_unreadable_and_not_ignored(tmp_path):
    write_texts(tmp_path, ["a"])
    (tmp_path / "text" / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"gone\.txt cannot be read \(No such file"):
        read(corpus_config(tmp_path))
    documents, skipped = read(corpus_config(tmp_path, on_unreadable="skip"))
    assert len(documents) == 1 and len(skipped.files) == 1


def test_identity_follows_the_files(tmp_path):
    write_texts(tmp_path, ["a", "b"])
    before = open_source(corpus_config(tmp_path)).identity
    assert open_source(corpus_config(tmp_path)).identity == before
    os.utime(tmp_path / "text" / "001.txt", ns=(1, 1))
    assert open_source(corpus_config(tmp_path)).identity != before


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


def test_a_file_that_changes_while_it_is_read(tmp_path):
    write_texts(tmp_path, ["a", "b"])
    documents = open_source(corpus_config(tmp_path, on_unreadable="skip")).documents(Skipped())
    next(documents)
    with open(tmp_path / "text" / "001.txt", "a") as file:
        file.write("more")
    with pytest.raises(ConfigError, match=r"001\.txt has changed while it was read: start again when the file is"):
        list(documents)


def test_commas_of_paths(tmp_path):
    for name in ("a,b.txt", "p.txt"):
        (tmp_path / name).write_text("x")
    for path, message in (
        (f"{tmp_path}/a,b.txt", "exists, but a comma separates paths: rename it, or write"),
        (f"{tmp_path}/p.txt,", "ends in a comma: remove the comma"),
        (f",{tmp_path}/p.txt", "has nothing before a comma: remove the comma"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_source(corpus_config(tmp_path, path=path))


def test_an_unreadable_file_of_several_parts_is_counted_once(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text\n" * 700_000 + b"\xff")
    skipped = Skipped()
    corpus = corpus_config(tmp_path, path=str(tmp_path / "a.txt"), document_per="line", on_unreadable="skip")
    source = open_source(corpus)
    assert len(source.parts) > 1 and not list(source.documents(skipped)) and skipped.files == [f"{tmp_path}/a.txt"]
