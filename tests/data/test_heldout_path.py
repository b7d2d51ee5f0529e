"""data.heldout_path without text that can be read: refused before the corpus is read, and never replaced by a split."""

import gzip
import json

import pytest

from contract.errors import ConfigError
from data import train_tokenizer
from data.prepare import __main__ as prepare
from data.store import store
from tests.data.corpus import corpus_config, opened
from tests.data.record_files import write_parquet

LINE = json.dumps({"text": "a text"}) + "\n"
WHOLE = gzip.compress(LINE.encode() * 500)
# The held-out file of each source: its name, contents, and what its error says.
UNREADABLE = {
    "a compressed file that is cut off": (
        "held.jsonl.gz",
        WHOLE[:-20],
        r"cannot be read \(Truncated compressed",
    ),
    "a parquet file that is none": ("held.parquet", b"PAR1" * 9, "is not a whole parquet file"),
    "text that is not UTF-8": ("held.txt", b"a\xff", r"is not UTF-8 \(byte 1\)"),
}


def write_corpus(folder, name, contents):
    """Writes a corpus whose second file is unreadable too, and its held-out file. Returns fields of the corpus."""
    kind = name.split(".")[1]
    (folder / "train").mkdir()
    if kind == "parquet":
        write_parquet(folder / "train" / "0.parquet", [{"text": "a document"}] * 9)
    else:
        (folder / "train" / f"0.{kind}").write_text(LINE * 9)
    (folder / "train" / f"1.{kind}").write_bytes(b"\xff")
    (folder / name).write_bytes(contents)
    return {
        "source": {"txt": "text"}.get(kind, kind),
        "path": str(folder / "train"),
        "heldout_path": str(folder / name),
        "cache_dir": str(folder / "cache"),
    }


def flags_of(fields):
    return [f"--{name}={value}" for name, value in fields.items()]


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_unreadable_file_is_refused_before_the_corpus_is_read(kind, tmp_path):
    name, contents, problem = UNREADABLE[kind]
    fields = write_corpus(tmp_path, name, contents)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/{name} {problem}.* exclude it from --heldout_path, or"):
        prepare.main(["prepare", *flags_of(fields)])
    assert not list((tmp_path / "cache").glob("*")) and not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize("kind", UNREADABLE)
def test_where_all_of_it_is_skipped_nothing_else_is_held_out_instead(kind, tmp_path):
    name, contents, _ = UNREADABLE[kind]
    fields = write_corpus(tmp_path, name, contents) | {"on_unreadable": "skip"}
    message = rf"^--heldout_path='{tmp_path}/{name}' has no document \(unreadable files: 1; lines or records: 0\)"
    with pytest.raises(ConfigError, match=message):
        prepare.main(["prepare", *flags_of(fields)])
    del fields["cache_dir"]
    with pytest.raises(ConfigError, match=message):
        train_tokenizer.main(["train_tokenizer", *flags_of(fields), f"--out={tmp_path}/x.model"])


@pytest.mark.parametrize(
    ("contents", "skipped"),
    [("", ""), (" \n\n", ""), ("{}\n[]\n", r" \(unreadable files: 0; lines or records: 2\)")],
)
def test_held_out_lines_without_a_document(contents, skipped, tmp_path):
    fields = write_corpus(tmp_path, "held.jsonl", contents.encode()) | {"on_unreadable": "skip"}
    with pytest.raises(ConfigError, match=rf"has no document{skipped}: name other text"):
        prepare.main(["prepare", *flags_of(fields)])


def test_a_store_without_held_out_text_is_refused(tmp_path, monkeypatch):
    fields = write_corpus(tmp_path, "held.txt", b"\xff") | {"on_unreadable": "skip"}
    corpus = corpus_config(tmp_path, **fields)
    with monkeypatch.context() as patch:
        patch.setattr(store, "check_heldout", lambda source, corpus: None)
        with pytest.raises(ConfigError, match="has no document"):
            opened(corpus)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with pytest.raises(ConfigError, match="has no document"):
        opened(corpus)
