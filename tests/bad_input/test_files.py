"""Every file that a command reads is refused in one line where it is missing, empty, cut off or something else."""

import contextlib
import gzip
import io
import json
import shutil
import sys

import pytest

from data import prepare, train_tokenizer
from tests.bad_input.answers import check_rows, row, wrong_answer
from tests.bad_input.test_commands import main_of
from tests.data.record_files import write_examples, write_parquet, zstd

GARBAGE = bytes(range(256)) * 8
ANY = {
    "missing": None,
    "empty": b"",
    "half": ...,
    "garbage": GARBAGE,
    "a folder": "folder",
}
JSON = ANY | {
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "a text": b'"text"',
    "a number": b"5",
    "NaN": b"NaN",
    "not UTF-8": b'{"a": "\xff"}',
    "nested too deep": b"[" * 100_000,
    "a number too long": b'{"a": ' + b"1" * 5000 + b"}",
    "two values": b"{} {}",
}
LINES = {name: value for name, value in JSON.items() if name not in ("missing", "empty", "half", "two values")}


def damage(path, contents):
    """Replaces a file by `contents`: bytes, "folder", ... for its first half, or None for no file."""
    whole = path.read_bytes()
    path.unlink()
    if contents == "folder":
        path.mkdir()
    elif contents is not None:
        path.write_bytes(whole[: len(whole) // 2] if contents is ... else contents)
    return whole


def check_damaged(path, kinds, main, arguments, names, monkeypatch, may_be_unread=()):
    """Fails with every kind of damage to the file `path` that the command does not answer as it should."""
    wrong = []
    for kind, contents in kinds.items():
        whole = damage(path, contents)
        answer = wrong_answer(row(kind, main, *arguments, names=names), monkeypatch)
        if answer and not (kind in may_be_unread and answer.startswith("accepted")):
            wrong.append((kind, answer))
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole)
    listed = "\n".join(f"  {path.name}: {kind}: {answer}" for kind, answer in wrong)
    assert not wrong, f"{len(wrong)} of {len(kinds)} damaged files are not answered in one line:\n{listed}"


@pytest.fixture
def own(place, tmp_path):
    """A copy of the fixture `place` to be damaged."""
    shutil.copytree(place, tmp_path / "place")
    config = tmp_path / "place" / "run" / "config.json"
    config.write_text(config.read_text().replace(str(place), str(tmp_path / "place")))
    return tmp_path / "place"


@pytest.mark.parametrize("command", ["train.evaluate", "train.show.__main__", "train.generate.__main__"])
def test_config_of_a_run(command, own, monkeypatch):
    needed = ["--prompt=a"] if "generate" in command else []
    path = own / "run" / "config.json"
    names = ("config.json", "config field")
    check_damaged(path, JSON, main_of(command), [f"--workdir={own}/run", *needed], names, monkeypatch)


def test_fields_in_the_config_of_a_run(own, monkeypatch):
    path, rows = own / "run" / "config.json", []
    whole = json.loads(path.read_text())
    sections = [name for name, value in whole.items() if isinstance(value, dict)]

    def evaluate_with(config):
        def main():
            path.write_text(json.dumps(config))
            main_of("train.show.__main__")()

        return main

    for name in sections:
        if name == "corpus":
            continue
        without = {key: value for key, value in whole.items() if key != name}
        rows.append(row(f"no {name}", evaluate_with(without), f"--workdir={own}/run", names=name))
        for value in (None, [], 5, "text", *[{}][: name != "mesh"]):  # readers have a mesh of their own
            changed = evaluate_with(whole | {name: value})
            rows.append(row(f"{name}={value}", changed, f"--workdir={own}/run", names=name))
    for name, value in {"steps": None, "ema_decay": "x", "batch_size": 1.5}.items():
        changed = evaluate_with(whole | {"train": whole["train"] | {name: value}})
        rows.append(row(f"train.{name}={value}", changed, f"--workdir={own}/run", names=f"train.{name}"))
    check_rows(rows, monkeypatch)


def test_metrics(own, monkeypatch):
    path, arguments = own / "run" / "metrics.jsonl", [f"{own}/run", f"--out={own}/new.svg"]
    kinds = {kind: value + b"\n" if isinstance(value, bytes) else value for kind, value in LINES.items()}
    for field, value in {"step": "null", "split": "null", "loss": '"x"'}.items():
        line = {"step": "2", "split": '"eval"', "loss": "1.5"} | {field: value}
        kinds[f"{field}={value}"] = ("{" + ", ".join(f'"{k}": {v}' for k, v in line.items()) + "}\n").encode()
    kinds |= {"missing": None, "empty": b""}
    check_damaged(path, kinds, main_of("train.plot"), arguments, ("metrics", f"{own}/run"), monkeypatch)


# A coroutine of Orbax that is discarded reports the error a second time, where sys.unraisablehook is pytest's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("file", ["_METADATA", "manifest.ocdbt", "d", "ocdbt.process_0/d"])
def test_checkpoint(file, own, monkeypatch):
    path = own / "run" / "checkpoints" / "2" / "state" / file
    if path.is_dir():
        path = max(path.iterdir(), key=lambda item: item.stat().st_size)
    kinds = {name: ANY[name] for name in ("missing", "empty", "half", "garbage")}
    # A data file begins with the parameters. Evaluation does not read the optimizer's arrays in its second half.
    unread = ("half",) if file == "ocdbt.process_0/d" else ()
    check_damaged(path, kinds, main_of("train.evaluate"), [f"--workdir={own}/run"], "checkpoints", monkeypatch, unread)


STORE = ["meta.json", "tokens.bin", "offsets.npy", "digests.npy", "text_bytes.npy", "unigram_counts.npy"]


@pytest.mark.parametrize("file", STORE)
def test_token_store(file, place, monkeypatch):
    [folder] = (place / "cache").iterdir()
    kinds = JSON if file.endswith(".json") else ANY
    kinds = {kind: value for kind, value in kinds.items() if file.endswith(".json") or kind != "garbage"}
    arguments = [f"--workdir={place}/run"]
    check_damaged(folder / file, kinds, main_of("train.show.__main__"), arguments, str(folder), monkeypatch)


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
        rows.append(row("text_key", _main, *_prepare(own, *flags, "--text_key=b"), names="data.text_key"))
    check_rows(rows, monkeypatch)


def test_a_hugging_face_dataset_that_is_not_there(own, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    paths = ("owner/name", "owner/name/config@revision:split", f"{own}/nowhere", f"{own}/empty", "gs://bucket/x")
    rows = [row(path, _main, *_prepare(own, "--source=hf", f"--path={path}"), names=path) for path in paths]
    check_rows(rows, monkeypatch)


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_prompts(name, own, monkeypatch):
    (own / name).write_bytes(b'{"prompt": "a"}\n')
    arguments = [f"--workdir={own}/run", f"--prompts={own}/{name}"]
    kinds = LINES | {"missing": None, "empty": b"", "no prompt": b'{"text": "a"}', "a number": b'{"prompt": 5}'}
    if name == "p.txt":
        kinds = {kind: kinds[kind] for kind in ("missing", "empty", "garbage", "not UTF-8", "a folder")}
    main = main_of("train.generate.__main__")
    check_damaged(own / name, kinds, main, arguments, str(own / name), monkeypatch)


STUDIES = {
    "missing": None,
    "empty": b"",
    "garbage": GARBAGE,
    "no Python": b"def (:",
    "a folder": "folder",
    "raises": b"raise RuntimeError('x\\ny')",
    "another function": b"def get_config():\n    return 1\n",
    "returns null": b"def get_study():\n    return None\n",
    "not UTF-8": b"x = '\xff'",
}


def test_study(own, monkeypatch):
    path = own / "mine.py"
    path.write_text("")
    arguments = [f"--study={path}", "--dry_run"]
    check_damaged(path, STUDIES, main_of("train.ablate.__main__"), arguments, str(path), monkeypatch)


CONFIGS = {kind: value for kind, value in STUDIES.items() if kind not in ("another function", "returns null")}
CONFIGS |= {
    "no get_config": b"x = 1\n",
    "returns null": b"def get_config():\n    return None\n",
    "returns a list": b"def get_config():\n    return []\n",
    "lacks everything": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict()\n",
}


def test_config_file(own, monkeypatch):
    path = own / "mine.py"
    path.write_text("")
    arguments = [f"--config={path}"]
    names = (str(path), "config field")
    check_damaged(path, CONFIGS, main_of("train.show.__main__"), arguments, names, monkeypatch)


def test_study_folder(own, monkeypatch):
    (own / "study").mkdir()
    (own / "study" / "study.json").write_text(json.dumps({"study": {"seeds": 1, "budget": {"amount": 1.0}}}))
    arguments = ["--study=configs/studies/scaling.py", f"--out={own}/study", "--report"]
    main = main_of("train.ablate.__main__")
    check_damaged(own / "study" / "study.json", JSON, main, arguments, (f"{own}/study",), monkeypatch)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_hugging_face_folder(file, own, monkeypatch):
    kinds = JSON if file.endswith(".json") else ANY
    arguments = [f"--from={own}/export", f"--workdir={own}/new"]
    names = (file, f"{own}/export")
    check_damaged(own / "export" / file, kinds, main_of("train.convert"), arguments, names, monkeypatch)


def test_origin_of_an_imported_model(own, monkeypatch):
    kinds = {kind: value for kind, value in JSON.items() if kind != "missing"}  # a folder without the file is a run's
    arguments = [f"--workdir={own}/imported", f"--out={own}/new"]
    path = own / "imported" / "imported.json"
    check_damaged(path, kinds, main_of("train.export"), arguments, "imported.json", monkeypatch)
