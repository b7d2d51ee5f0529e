"""Every file that a command reads is refused in one line where it is missing, empty, cut off or something else."""

import json

import pytest

from tests.bad_input.answers import check_rows, row
from tests.bad_input.damaged import ANY, GARBAGE, JSON, LINES, check_damaged
from tests.bad_input.test_commands import main_of


@pytest.mark.parametrize("command", ["train.evaluate", "show.__main__", "generate.__main__"])
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
            main_of("show.__main__")()

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
    check_damaged(folder / file, kinds, main_of("show.__main__"), arguments, str(folder), monkeypatch)


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_prompts(name, own, monkeypatch):
    (own / name).write_bytes(b'{"prompt": "a"}\n')
    arguments = [f"--workdir={own}/run", f"--prompts={own}/{name}"]
    kinds = LINES | {"missing": None, "empty": b"", "no prompt": b'{"text": "a"}', "a number": b'{"prompt": 5}'}
    if name == "p.txt":
        kinds = {kind: kinds[kind] for kind in ("missing", "empty", "garbage", "not UTF-8", "a folder")}
    main = main_of("generate.__main__")
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
    check_damaged(path, STUDIES, main_of("studies.__main__"), arguments, str(path), monkeypatch)


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
    check_damaged(path, CONFIGS, main_of("show.__main__"), arguments, names, monkeypatch)


def test_study_folder(own, monkeypatch):
    (own / "study").mkdir()
    (own / "study" / "study.json").write_text(json.dumps({"study": {"seeds": 1, "budget": {"amount": 1.0}}}))
    arguments = ["--study=configs/studies/scaling.py", f"--out={own}/study", "--report"]
    main = main_of("studies.__main__")
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
