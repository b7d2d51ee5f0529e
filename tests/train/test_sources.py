"""Every source trains two steps through the command line, and equal texts have equal losses."""

import gzip
import json
import sys

import pytest
import tensorflow_datasets as tfds

from files.paths import copy_file
from tests.data.record_files import write_examples, write_jsonl, write_parquet, write_records, zstd
from tests.data.tfds_datasets import read_from, write_dataset
from train import main

TEXTS = [f"Document {i} is a text of one line, with the number {i * 7919 % 1000} in it." for i in range(40)]
RECORDS = [{"text": text} for text in TEXTS]
TINY = ["--config=tests/small_config.py:clm,decoder_only", "--config.data.split_by=document"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The flags of every source of TEXTS, and of the standard library's."""
    folder = tmp_path_factory.mktemp("sources")
    text, lines = "\n".join(TEXTS).encode(), "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
    found = {}
    for name, contents in {
        "a.txt": text,
        "a.txt.gz": gzip.compress(text),
        "a.jsonl.gz": gzip.compress(lines),
        "a.jsonl.zst": zstd(lines),
    }.items():
        (folder / name).write_bytes(contents)
        flags = {"source": "jsonl"} if "jsonl" in name else {"source": "text", "document_per": "line"}
        found[name] = flags | {"path": folder / name}
    write_jsonl(folder / "a.jsonl", RECORDS)
    write_parquet(folder / "a.parquet", [{"content": text, "n": 1} for text in TEXTS])
    write_examples(folder / "a.array_record", RECORDS)
    write_records(folder / "texts.array_record", [text.encode() for text in TEXTS])
    found |= {
        "a.jsonl": {"source": "jsonl", "path": folder / "a.jsonl"},
        "a.parquet": {"source": "parquet", "path": folder / "a.parquet", "text_key": "content"},
        "array_record": {"source": "array_record", "path": folder / "a.array_record"},
        "array_record of text": {"source": "array_record", "path": folder / "texts.array_record", "text_key": ""},
        "tfds": {"source": "tfds", "path": "trained_texts"},
        "stdlib": {"source": "stdlib"},
        "stdlib_functions": {"source": "stdlib_functions"},
    }
    write_dataset("trained_texts", RECORDS, folder / "tfds", text=tfds.features.Text())
    read_from(folder / "tfds")
    return found


def train(flags, workdir, monkeypatch, capsys):
    """Runs the command in this process. Returns the loss of its evaluation."""
    arguments = [f"--config.data.{name}={value}" for name, value in flags.items()]
    monkeypatch.setattr(sys, "argv", ["train.main", *TINY, f"--workdir={workdir}", *arguments])
    sys.modules.pop("config_config", None)  # the module of the last --config, which ml_collections would keep
    main.main()
    printed = capsys.readouterr().out
    assert "done: 2 steps" in printed
    metrics = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return next(line["loss"] for line in metrics if line["split"] == "eval")


def test_every_source_trains_two_steps(sources, tmp_path, monkeypatch, capsys):
    losses = {}
    for number, (name, flags) in enumerate(sources.items()):
        flags = {"cache_dir": tmp_path / "cache", **flags}
        losses[name] = train(flags, tmp_path / str(number), monkeypatch, capsys)
    for name in ("stdlib", "stdlib_functions", "tfds"):  # TFDS shuffles when it writes
        del losses[name]
    assert len(losses) == 8 and len(set(losses.values())) == 1, losses


def test_sources_in_a_bucket_train_two_steps(bucket, sources, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    losses = [train(sources["a.txt"] | {"cache_dir": tmp_path / "cache"}, tmp_path / "local", monkeypatch, capsys)]
    for name in ("a.txt", "a.jsonl.gz", "a.parquet", "array_record"):
        path = sources[name]["path"]
        copy_file(path, f"{bucket}/{path.name}")
        flags = sources[name] | {"path": f"{bucket}/{path.name}", "cache_dir": tmp_path / "cache"}
        losses.append(train(flags, tmp_path / name, monkeypatch, capsys))
    assert len(set(losses)) == 1, losses


def test_a_hugging_face_dataset_trains_two_steps(sources, tmp_path, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "saved")
    flags = {"cache_dir": tmp_path / "cache", "source": "hf", "path": tmp_path / "saved"}
    loss = train(flags, tmp_path / "hf", monkeypatch, capsys)
    assert loss == train(flags | sources["a.parquet"], tmp_path / "parquet", monkeypatch, capsys)
