"""Every kind of tokenizer trains through the command line."""

import sys

import pytest

from data import train_tokenizer
from tests.data import tiny_tokenizers
from tests.train.subprocesses import ROOT
from train import main as train_main
from workdir.metrics import read_metrics

TRAINED = {"unigram": "unigram.model", "bpe": "bpe.model", "byte-level bpe": "bpe.json", "wordpiece": "wordpiece.json"}
ROWS = 512  # of every model, so that all runs have the same compiled programs


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """A folder with a tokenizer of every kind."""
    pytest.importorskip("sentencepiece")
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tokenizers")
    source = ["--source=text", f"--path={corpus / 'text'}", "--document_per=paragraph", "--max_bytes=50000"]
    for kind, name in TRAINED.items():
        flags = [f"--kind={kind.split()[-1]}", f"--out={folder / name}", "--vocab_size=500"]
        train_tokenizer.main(["train_tokenizer", *source, *flags])
    tiny_tokenizers.t5(folder / "t5")  # Unigram of Hugging Face, with sentinels
    tiny_tokenizers.llama(folder / "llama")  # BPE with byte fallback, without pad
    return folder


def train(corpus, monkeypatch, workdir, tokenizer, **changes):
    """Runs train.main for two steps. changes: fields of the config."""
    fields = {"data.tokenizer": tokenizer, "data.path": corpus / "text", "data.cache_dir": corpus / "cache"}
    fields |= {"model.vocab_size": ROWS, "model.num_layers": 1} | changes
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    config = f"--config={ROOT}/tests/small_config.py:clm,decoder_only"
    monkeypatch.setattr(sys, "argv", ["train.main", config, f"--workdir={workdir}", *overrides])
    train_main.main()


# The numbers of ids with the default of 100 sentinels, and those of them that the file lacks.
IDS = {
    "unigram.model": (507, 7),
    "bpe.model": (507, 7),
    "bpe.json": (507, 7),
    "wordpiece.json": (503, 3),
    "t5": (101, 7),
    "llama": (406, 107),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED.values(), "t5", "llama"])  # bytes train in all other tests
def test_every_kind_trains_two_steps(corpus, folder, monkeypatch, capsys, tmp_path, name):
    changes = {"data.num_sentinels": 10} if name == "t5" else {}
    train(corpus, monkeypatch, tmp_path / "run", folder / name, **changes)
    out, err = capsys.readouterr()
    assert "done: 2 steps" in out
    size, appended = IDS[name]
    line = f"vocabulary  {size} ids, {appended} of them appended to the tokenizer's; "
    assert f"{line}embedding tables of {ROWS} rows, {ROWS - size} of them padding" in out
    losses = [line["loss"] for line in read_metrics(tmp_path / "run", "train")]
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses)
    assert ("the tokenizer changes" in out + err) == (name in ("wordpiece.json", "t5"))
