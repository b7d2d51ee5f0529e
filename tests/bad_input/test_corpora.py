"""Every file of a corpus or a tokenizer is refused in one line if it is missing, empty, cut off or something else."""

import contextlib
import gzip
import io
import json
import shutil
import sys

import pytest

from data import train_tokenizer
from data.prepare import __main__ as prepare
from tests.bad_input.answers import check_rows, row
from tests.bad_input.damaged import ANY, GARBAGE, JSON, LINES, check_damaged
from tests.data.record_files import write_examples, write_parquet, zstd


def _prepare(own, *arguments):
    return [f"--cache_dir={own}/new_cache", *arguments]


def _tokenizer_flags(own, path):
    return _prepare(own, "--source=text", f"--path={own}/text.txt", f"--tokenizer={path}")


# Changes to a tokenizer.json: what is wrong -> (part, its value); for the part "model", fields of the model.
PARTS = {
    "a vocabulary of a list": ("model", {"vocab": [1, 2]}),
    "no vocabulary": ("model", {"vocab": None}),
    "an empty vocabulary": ("model", {"vocab": {}, "merges": []}),
    "an id as text": ("model", {"vocab": {"a": "x"}, "merges": []}),
    "a negative id": ("model", {"vocab": {"a": -5}, "merges": []}),
    "an id beyond reason": ("model", {"vocab": {"a": 0, "b": 2**32 - 1}, "merges": []}),
    "an id that is no number": ("model", {"vocab": {"a": 1.5}, "merges": []}),
    "two tokens with an id": ("model", {"vocab": {"a": 0, "b": 0, "c": 2}, "merges": []}),
    "merges of other tokens": ("model", {"merges": [["zz", "qq"]]}),
    "an unknown token that is a number": ("model", {"unk_token": 5}),
    "another model": ("model", {"type": 5}),
    "added tokens that are a number": ("added_tokens", 5),
    "an added token without id": ("added_tokens", [{"content": "a"}]),
    "an added token without text": ("added_tokens", [{"id": 1, "content": None, "special": True}]),
    "an added token beyond reason": (
        "added_tokens",
        [{"id": 2**32 - 1, "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}],
    ),
    "a pre-tokenizer that is a number": ("pre_tokenizer", 5),
    "a pre-tokenizer without type": ("pre_tokenizer", {}),
    "normalizers without type": ("normalizer", [1]),
    "a post-processor that is a number": ("post_processor", 5),
}


def test_tokenizer_json(own, monkeypatch):
    pytest.importorskip("tokenizers")
    path = own / "own.json"
    shutil.copy(own / "export" / "tokenizer.json", path)
    whole = json.loads(path.read_text())
    kinds = dict(JSON)
    for kind, (part, value) in PARTS.items():
        changed = {**whole, part: {**whole["model"], **value} if part == "model" else value}
        kinds[kind] = json.dumps(changed).encode()
    arguments = _tokenizer_flags(own, path)
    check_damaged(path, kinds, lambda: prepare.main(sys.argv), arguments, str(path), monkeypatch)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
def test_files_next_to_a_tokenizer_json(name, own, monkeypatch):
    pytest.importorskip("tokenizers")
    path = own / "export" / name
    kinds = {kind: value for kind, value in JSON.items() if kind not in ("missing", "an empty object")}
    for value in ("5", "[1]", '{"content": 5}', '"no such token"'):
        kinds[f"pad_token={value}"] = f'{{"pad_token": {value}}}'.encode()
    if name == "special_tokens_map.json":  # which tokenizer_config.json precedes
        (own / "export" / "tokenizer_config.json").unlink()
    arguments = _tokenizer_flags(own, own / "export")
    check_damaged(path, kinds, lambda: prepare.main(sys.argv), arguments, str(own / "export"), monkeypatch)


def test_sentencepiece_model(own, monkeypatch):
    pytest.importorskip("sentencepiece")
    path, flags = own / "spm.model", ["--document_per=line", "--num_sentinels=3", "--vocab_size=330"]
    with contextlib.redirect_stdout(io.StringIO()):
        command = ["train_tokenizer", "--source=text", f"--path={own}/text.txt", f"--out={path}", *flags]
        train_tokenizer.main(command)
    whole = path.read_bytes()
    kinds = JSON | {
        "without its last byte": whole[:-1],
        "a tokenizer.json": (own / "export/tokenizer.json").read_bytes(),
    }
    check_damaged(path, kinds, lambda: prepare.main(sys.argv), _tokenizer_flags(own, path), str(path), monkeypatch)


def test_what_is_no_path_of_a_tokenizer(own, monkeypatch):
    for name in ("spiece.model", "folder.model", "empty.json"):
        (own / name).mkdir()
    names = ["gpt2", "google/t5-v1_1-base", "bytes", "", f"{own}/none", f"{own}/empty", f"{own}/others"]
    names += [f"{own}/spiece.model", f"{own}/empty.json", f"{own}/text.txt", "hdfs://host/t.model"]
    rows = [
        row(name, lambda: prepare.main(sys.argv), *_tokenizer_flags(own, name), names="tokenizer=") for name in names
    ]
    check_rows(rows, monkeypatch)


CORPORA = {
    "c.jsonl": LINES
    | {"no text": b'{"label": "a"}', "a number as text": b'{"text": 5}', "missing": None, "empty": b""},
    "c.txt": {"missing": None, "empty": b"", "garbage": GARBAGE, "not UTF-8": b"a\xff"},
    "c.txt.gz": {name: value for name, value in ANY.items() if name != "a folder"},
    "c.jsonl.gz": {name: value for name, value in ANY.items() if name != "a folder"},
    "c.jsonl.zst": {name: value for name, value in ANY.items() if name != "a folder"},
    "c.parquet": {name: value for name, value in ANY.items() if name != "a folder"},
    "c.array_record": {name: value for name, value in ANY.items() if name != "a folder"},
}


def _write_corpus(path):
    """Writes documents in the format that the file's name says. Returns data.source."""
    name, lines = path.name, b'{"text": "a document"}\n' * 9
    if name.endswith(".parquet"):
        write_parquet(path, [{"text": "a document"}] * 9)
    elif name.endswith(".array_record"):
        write_examples(path, [{"text": "a document"}] * 9)
    else:
        compress = gzip.compress if name.endswith(".gz") else zstd if name.endswith(".zst") else bytes
        path.write_bytes(compress(lines))
    return {"txt": "text"}.get(name.split(".")[1], name.split(".")[1])


@pytest.mark.parametrize("name", CORPORA)
def test_corpus(name, own, monkeypatch):
    source = _write_corpus(own / name)
    arguments = _prepare(own, f"--source={source}", f"--path={own}/{name}")
    check_damaged(own / name, CORPORA[name], lambda: prepare.main(sys.argv), arguments, str(own / name), monkeypatch)
    skipping = [*arguments, "--on_unreadable=skip"]  # the only file, so nothing remains
    check_damaged(own / name, CORPORA[name], lambda: prepare.main(sys.argv), skipping, str(own / name), monkeypatch)
    assert not (own / "new_cache").exists() or not list((own / "new_cache").iterdir())


def _main():
    prepare.main(sys.argv)


def test_sources_without_their_data(own, monkeypatch):
    rows = [
        row(f"{source} {path}", _main, *_prepare(own, f"--source={source}", f"--path={path}"), names=path)
        for source in ("text", "jsonl", "parquet", "array_record")
        for path in (f"{own}/nowhere", f"{own}/empty", f"{own}/*.none", "hdfs://host/x")
    ]
    rows.append(row("tfds", _main, *_prepare(own, "--source=tfds", "--path=no_such"), names="no_such"))
    for flags in (["--source=text", f"--path={own}/text.txt"], ["--source=stdlib"]):
        rows.append(row("text_key", _main, *_prepare(own, *flags, "--text_key=b"), names="--text_key"))
    check_rows(rows, monkeypatch)


def test_a_hugging_face_dataset_that_is_not_there(own, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    paths = ("owner/name", "owner/name/config@revision:split", f"{own}/nowhere", f"{own}/empty", "gs://bucket/x")
    rows = [row(path, _main, *_prepare(own, "--source=hf", f"--path={path}"), names=path) for path in paths]
    check_rows(rows, monkeypatch)
