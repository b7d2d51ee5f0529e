"""Commands refuse flags, folders and files that are wrong, in one line that names them."""

import gzip
import importlib
import inspect
import json
import re
import sys

import pytest

from contract.errors import ConfigError
from tests.bad_input.answers import check_damaged, check_rows, row
from tests.data.record_files import write_examples, write_parquet

GARBAGE = bytes(range(256)) * 8
ANY = {"missing": None, "empty": b"", "garbage": GARBAGE}
JSON = ANY | {"a list": b"[]", "a number": b"5", "not UTF-8": b'{"a": "\xff"}', "two values": b"{} {}"}


def main_of(command):
    """The `main` of a command, which train/ starts by a line; those of data/ take the command line as an argument."""
    front = re.search(r'run_module\("(.*?)"', inspect.getsource(importlib.import_module(command)))
    name = front[1] if front else command
    module = importlib.import_module(name if "." in name else f"{name}.__main__")
    return (lambda: module.main(sys.argv)) if command.startswith("data.") else module.main


# Command -> the arguments that it needs, with the folders of the fixture `place`.
COMMANDS = {
    "train.main": ["--config=configs/clm.py", "--workdir={place}/new"],
    "train.evaluate": ["--workdir={place}/run"],
    "train.generate": ["--workdir={place}/run", "--prompt=a"],
    "train.plan": ["--config=configs/clm.py", "--topology=cpu:1"],
    "train.plot": ["{place}/run", "--out={place}/new.svg"],
    "train.ablate": ["--study=configs/studies/scaling.py", "--dry_run"],
    "train.export": ["--workdir={place}/run", "--out={place}/new"],
    "train.convert": ["--from={place}/export", "--workdir={place}/new"],
    "data.train_tokenizer": ["--source=text", "--path={place}/text.txt", "--out={place}/new.model"],
    "benchmarks.step": [],
}


def arguments_of(command, place, without=""):
    needed = [argument.format(place=place) for argument in COMMANDS[command]]
    return [argument for argument in needed if argument.partition("=")[0] != without]


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        ("train.generate", "--max_tokens", "x"),
        ("train.generate", "--mode", "no such value"),
        ("train.evaluate", "--probe", "none"),
        ("train.main", "--process_id", "1.5"),
        ("data.train_tokenizer", "--vocab_size", "300"),
        ("data.train_tokenizer", "--filters.min_characters", "-1"),
        ("data.prepare.__main__", "--tokenizer", "none"),
        ("data.prepare.__main__", "--cache_dir", ""),
        ("data.prepare.__main__", "--filters.jaccard", "2.0"),
    ],
)
def test_values_of_flags(command, flag, value, place):
    if command == "data.train_tokenizer":
        pytest.importorskip("sentencepiece")
    needed = ["--source=text", f"--path={place}/text.txt"]
    needed = needed if command not in COMMANDS else arguments_of(command, place, without=flag)
    needed = [argument for argument in needed if not argument.startswith(f"{flag}=")]
    names = (flag, f"data.{flag[2:]}", flag[2:])
    check_rows([row(main_of(command), *needed, f"{flag}={value}", names=names)])


# Command, flag that names something to read or to write, and what is not that. A name is a folder of `place`.
NOT_TO_READ = ["none", "file", "empty", "others", "run/checkpoints"]
PATHS = [
    ("train.evaluate", "--workdir", [*NOT_TO_READ, "export", "hdfs://host/run"]),
    ("train.plot", "", NOT_TO_READ),
    ("train.convert", "--from", NOT_TO_READ),
    ("train.main", "--config.train.init_from", NOT_TO_READ),
    ("train.main", "--workdir", ["file", "file/none", "export", "gs:/bucket/run", "hdfs://host/run"]),
    ("train.plot", "--out", ["none/figure.svg", "empty", "figure.jpg", "s3://bucket/figure.svg"]),
    ("train.export", "--out", ["file", "others", "run", "file/none", "gs://bucket/export"]),
    ("train.convert", "--workdir", ["file", "others", "run"]),
    ("data.train_tokenizer", "--out", ["none/t.model", "t.txt", "", "export/tokenizer.json", "hdfs://host/t.model"]),
]


@pytest.mark.parametrize(("command", "flag", "paths"), PATHS, ids=[" ".join(path[:2]) for path in PATHS])
def test_paths(command, flag, paths, place):
    needed = arguments_of(command, place, without=flag)[not flag :]
    if command == "train.main":
        corpus = {"source": "text", "path": f"{place}/text.txt", "document_per": "paragraph", "inputs_length": 16}
        corpus |= {"cache_dir": f"{place}/cache", "heldout_fraction": 0.3}
        needed += [f"--config.data.{name}={value}" for name, value in corpus.items()]
    full = [path if "://" in path or ":/" in path else f"{place}/{path}" * bool(path) for path in paths]
    rows = [row(main_of(command), *needed, f"{flag}={path}" if flag else path, names=(path or flag,)) for path in full]
    check_rows(rows)


def test_config_of_a_run(own):
    path = own / "run" / "config.json"
    whole, evaluate = json.loads(path.read_text()), main_of("train.evaluate")
    kinds = JSON | {
        "no train": json.dumps({key: value for key, value in whole.items() if key != "train"}).encode(),
        "a section of text": json.dumps(whole | {"model": "text"}).encode(),
        "a field of another type": json.dumps(whole | {"train": whole["train"] | {"steps": None}}).encode(),
    }
    names = ("config.json", "config field", "config has no section", "train.steps", "model")
    check_damaged(path, kinds, row(evaluate, f"--workdir={own}/run", names=names))


@pytest.mark.parametrize("file", ["meta.json", "tokens.bin", "offsets.npy"])
def test_token_store(file, place):
    [folder] = (place / "cache").iterdir()  # not in `own`, whose copied text has another modification time
    evaluate = row(main_of("train.evaluate"), f"--workdir={place}/run", names=str(folder))
    check_damaged(folder / file, JSON if file == "meta.json" else ANY, evaluate)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_hugging_face_folder(file, own):
    kinds = JSON if file.endswith(".json") else ANY
    convert = row(main_of("train.convert"), f"--from={own}/export", f"--workdir={own}/new", names=(file, f"{own}/exp"))
    check_damaged(own / "export" / file, kinds, convert)


def test_a_link_of_a_hugging_face_folder_to_another_file_is_not_copied(own, monkeypatch):
    (own / "export" / "added_tokens.json").symlink_to(own / "text.txt")
    monkeypatch.setattr(sys, "argv", ["convert", f"--from={own}/export", f"--workdir={own}/new"])
    with pytest.raises(ConfigError, match=r"added_tokens\.json is damaged: .*: repair it"):
        main_of("train.convert")()
    assert not (own / "new").exists()


def prepare_row(own, *arguments, names):
    return row(main_of("data.prepare.__main__"), f"--cache_dir={own}/new_cache", *arguments, names=names)


CORPORA = {
    "c.jsonl": JSON | {"no text": b'{"label": "a"}', "a number as text": b'{"text": 5}'},
    "c.txt": ANY,
    "c.jsonl.gz": ANY | {"half": gzip.compress(b'{"text": "a document"}\n' * 9)[:-9]},
    "c.parquet": ANY,
    "c.array_record": ANY,
}


@pytest.mark.parametrize("name", CORPORA)
def test_corpus(name, own):
    path, documents = own / name, [{"text": "a document"}] * 9
    lines = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
    if name.endswith(("parquet", "record")):
        (write_parquet if name.endswith("parquet") else write_examples)(path, documents)
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    source = {"txt": "text"}.get(name.split(".")[1], name.split(".")[1])
    for skipping in ("error", "skip"):  # the only file, so nothing remains
        flags = (f"--source={source}", f"--path={path}", f"--on_unreadable={skipping}")
        kinds = {kind: value for kind, value in CORPORA[name].items() if kind != "two values"}
        check_damaged(path, kinds, prepare_row(own, *flags, names=str(path)))
    assert not list(own.glob("new_cache/*"))
