"""A run is read with its own tokenizer and on its own corpus, or not at all."""

import io
import json
import os
import pathlib
import shutil
import sys

import pytest
from rich.console import Console

from contract.errors import ConfigError
from evaluation import __main__ as evaluate
from experiment.experiment import make_experiment
from run.restore import load_experiment
from tests.data.tiny_tokenizers import SENTENCES, bert
from tests.train.subprocesses import ROOT
from tests.train.tiny_experiments import paragraph_experiment
from train.loop import train_and_evaluate
from workdir.metrics import read_metrics
from workdir.workdir import Workdir


def train_model(path: pathlib.Path, texts):
    """A SentencePiece model whose size in bytes does not depend on the order of its pieces."""
    spm = pytest.importorskip("sentencepiece")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=400, hard_vocab_limit=False,
        byte_fallback=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip


def with_swapped_pieces(model: bytes) -> bytes:
    """Returns a model of the same size in which two ordinary pieces have each other's ids."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    normal = [k for k, piece in enumerate(proto.pieces) if piece.type == piece.NORMAL]
    one, other = (proto.pieces[k] for k in normal[:2])
    one.piece, other.piece = other.piece, one.piece
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run with a SentencePiece model, at ../m.model, and a corpus of text, at ../text.txt."""
    folder = tmp_path_factory.mktemp("trained")
    text = (ROOT / "tests" / "fixtures" / "text.txt").read_text()
    (folder / "text.txt").write_text(text)
    train_model(folder / "m.model", text.splitlines())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = paragraph_experiment(2, str(folder / "cache")).config
        config["data"] |= {"path": str(folder / "text.txt"), "tokenizer": str(folder / "m.model")}
        train_and_evaluate(make_experiment(config), str(folder / "run"), console=Console(file=io.StringIO()))
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """The same run, with changes to come: its files in `trained` are put back afterwards."""
    kept = {name: (trained / name).read_bytes() for name in ("m.model", "text.txt", "run/config.json")}
    info = (trained / "text.txt").stat()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    shutil.copytree(trained / "run" / "tokenizer", tmp_path / "tokenizer")
    yield trained
    shutil.rmtree(trained / "run" / "tokenizer", ignore_errors=True)
    shutil.copytree(tmp_path / "tokenizer", trained / "run" / "tokenizer")
    for name, contents in kept.items():
        (trained / name).write_bytes(contents)
    os.utime(trained / "text.txt", ns=(info.st_atime_ns, info.st_mtime_ns))


def evaluated(monkeypatch, capsys, folder, *arguments):
    """Returns the line of train.evaluate and what it prints to standard error."""
    monkeypatch.setattr(sys, "argv", ["evaluate", f"--workdir={folder / 'run'}", *arguments])
    evaluate.main()
    out, err = capsys.readouterr()
    return json.loads(out), err


def replace_tokenizer(folder):
    model = folder / "m.model"
    other = with_swapped_pieces(model.read_bytes())
    assert len(other) == model.stat().st_size and other != model.read_bytes()
    model.write_bytes(other)


def test_the_tokenizer_travels_with_the_run(folder, monkeypatch, capsys):
    assert (folder / "run" / "tokenizer" / "m.model").read_bytes() == (folder / "m.model").read_bytes()
    [loss] = [line["loss"] for line in read_metrics(folder / "run", "eval")]
    replace_tokenizer(folder)
    line, err = evaluated(monkeypatch, capsys, folder)
    assert line["loss"] == pytest.approx(loss, rel=1e-4) and err == ""
    (folder / "m.model").unlink()
    assert evaluated(monkeypatch, capsys, folder)[0]["loss"] == line["loss"]
    assert load_experiment(folder / "run").config["data"]["tokenizer"] == str(folder / "m.model")


def test_without_a_copy_another_tokenizer_of_the_same_size_is_refused(folder, monkeypatch, capsys):
    shutil.rmtree(folder / "run" / "tokenizer")  # as in a run of an earlier version
    line, _ = evaluated(monkeypatch, capsys, folder)
    replace_tokenizer(folder)
    message = rf"/run: data.tokenizer='{folder}/m.model' is another tokenizer .*: put the run's tokenizer there"
    with pytest.raises(ConfigError, match=f"{message}, or add --allow_changed_corpus$"):
        evaluated(monkeypatch, capsys, folder)
    with pytest.raises(ConfigError, match=f"{message}$") as error:
        load_experiment(folder / "run")
    assert "\n" not in str(error.value)
    changed, err = evaluated(monkeypatch, capsys, folder, "--allow_changed_corpus")
    assert changed["loss"] != line["loss"]
    assert [note.split(":")[0] for note in err.splitlines()] == ["note", "note"]
    assert "is another tokenizer" in err and "the corpus" in err


def test_a_damaged_copy_is_refused_and_written_again_when_the_run_continues(folder):
    copy = folder / "run" / "tokenizer" / "m.model"
    copy.write_bytes(with_swapped_pieces(copy.read_bytes()))
    with pytest.raises(ConfigError, match=rf"data.tokenizer='{copy}' is another tokenizer .*: restore that file$"):
        load_experiment(folder / "run")
    config = load_experiment(folder / "run", on_other_tokenizer=lambda line: None).config
    train_and_evaluate(make_experiment(config), str(folder / "run"), console=Console(file=io.StringIO()))
    load_experiment(folder / "run")


@pytest.mark.parametrize("arguments", [["--all"], ["--probe=continuation", "--num_documents=4", "--length=12"]])
def test_a_changed_corpus_is_refused(folder, monkeypatch, capsys, arguments):
    text = folder / "text.txt"
    text.write_text(text.read_text().replace("e", "o", 1))
    message = rf"the corpus, data.source='text', data.path='{text}', has changed .*: restore its files, or add --allow_"
    with pytest.raises(ConfigError, match=message) as error:
        evaluated(monkeypatch, capsys, folder, *arguments)
    assert "\n" not in str(error.value)
    _, err = evaluated(monkeypatch, capsys, folder, "--allow_changed_corpus", *arguments)
    assert err.startswith("note: ") and "has changed since the run was trained" in err and len(err.splitlines()) == 1


def test_reading_a_run_builds_no_store_in_a_folder_that_its_config_names(folder, tmp_path, monkeypatch, capsys):
    path = folder / "run" / "config.json"
    config = json.loads(path.read_text())
    config["data"]["cache_dir"] = str(tmp_path / "elsewhere")
    path.write_text(json.dumps(config))
    line, _ = evaluated(monkeypatch, capsys, folder)
    assert not (tmp_path / "elsewhere").exists()
    assert len(list((tmp_path / "home" / ".cache" / "cloze").glob("text-*"))) == 1
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    config["data"]["cache_dir"] = str(folder / "cache")
    path.write_text(json.dumps(config))
    assert evaluated(monkeypatch, capsys, folder)[0] == line
    assert not (tmp_path / "other").exists(), "a store that exists is read where it is"


def test_a_hugging_face_tokenizer_is_copied_with_the_files_next_to_it(tmp_path):
    pytest.importorskip("tokenizers")
    bert(tmp_path / "bert")
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / "bert" / name).write_text('{"mask_token": "[MASK]"}')
    config = fixture_config_with(str(tmp_path / "bert"))
    tokenizer = make_experiment(config).tokenizer
    (tmp_path / "run").mkdir()
    run = Workdir(tmp_path / "run")
    run.write_tokenizer(tokenizer)
    run.write_config(config | {"corpus": {"tokenizer": tokenizer.fingerprint}})
    names = {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    shutil.rmtree(tmp_path / "bert")
    again = load_experiment(run).tokenizer
    assert again.fingerprint == tokenizer.fingerprint and again.vocab == tokenizer.vocab
    assert again.encode(SENTENCES[0]).tolist() == tokenizer.encode(SENTENCES[0]).tolist()


def fixture_config_with(tokenizer):
    config = paragraph_experiment(2, "nowhere").config
    return {**config, "data": {**config["data"], "tokenizer": tokenizer}}
