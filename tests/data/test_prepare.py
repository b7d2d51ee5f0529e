"""`python -m data.prepare`: its flags, what it prints, that training finds the store, and its errors."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.base import get_config
from contract.errors import ConfigError
from data.config import CorpusConfig
from data.prepare import main, parse_flags
from data.store import open_or_build
from data.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config, write_texts

ROOT = Path(__file__).parents[2]
NOT_IN_A_STORE = {"num_sentinels", "mode_tokens", "append_special_tokens", "decoder_start_token"}


def run(*flags):
    command = [sys.executable, "-m", "data.prepare", *flags]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)


def test_the_defaults_are_those_of_the_config():
    config, defaults = get_config().data, dataclasses.asdict(parse_flags(["prepare"])[0])
    names = defaults.keys() - NOT_IN_A_STORE
    assert {name: defaults[name] for name in names} == {name: config[name] for name in names}


def test_every_field_of_the_corpus_has_a_flag():
    fields = {
        "source": "text",
        "path": "x",
        "heldout_path": "w",
        "document_per": "line",
        "on_unreadable": "skip",
        "tokenizer": "y.model",
        "cache_dir": "z",
    }
    assert set(fields) == {field.name for field in dataclasses.fields(CorpusConfig)} - NOT_IN_A_STORE
    corpus, _ = parse_flags(["prepare", *(f"--{name}={value}" for name, value in fields.items())])
    special = {"num_sentinels": 0, "mode_tokens": (), "append_special_tokens": True, "decoder_start_token": "pad"}
    assert corpus == CorpusConfig(**fields, **special)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--document_per=page", r"--document_per=page: value should be one of <file\|line\|paragraph>"),
        ("--paths=x", "Unknown command line flag 'paths'. Did you mean: path"),
        ("corpus.txt", "unexpected argument 'corpus.txt': flags are written --name=value"),
    ],
)
def test_invalid_arguments(argument, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse_flags(["prepare", argument])
    assert "\n" not in str(error.value)


def test_training_finds_what_was_prepared(tmp_path, capsys, monkeypatch):
    write_texts(tmp_path, ["ab", "", "b"])
    corpus = corpus_config(tmp_path, num_sentinels=100)
    main(["prepare", "--source=text", f"--path={corpus.path}", f"--cache_dir={corpus.cache_dir}"])
    printed = capsys.readouterr().out
    monkeypatch.setattr("data.store.write_store", None)  # building again would raise
    store = open_or_build(corpus, make_tokenizer(corpus))
    assert re.search(rf"store +{store.folder}\n", printed)
    for line in (r"documents +2", r"tokens +5 as uint16", r"bytes of text +3", r"unigram entropy +0\.6365 nats"):
        assert re.search(line, printed)
    assert re.search(r"skipped +1 empty documents, 0 unreadable files", printed)


def test_skipped_files_are_printed(tmp_path, capsys):
    write_texts(tmp_path, ["ab", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    flags = ["--source=text", f"--path={tmp_path}/text", f"--cache_dir={tmp_path}/c", "--on_unreadable=skip"]
    main(["prepare", *flags])
    assert f"unreadable: {tmp_path}/text/001.txt\n" in capsys.readouterr().out


def test_an_error_is_one_line_and_status_1(tmp_path):
    done = run("--source=text", "--path=nowhere", f"--cache_dir={tmp_path}/c")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: data\.path='nowhere' does not exist: .*\n", done.stderr)
    assert not (tmp_path / "c").exists()


def test_help_is_the_usage_and_the_flags():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("python -m data.prepare --source=text")
    for field in dataclasses.fields(CorpusConfig):
        assert (f"--{field.name}:" in done.stdout) == (field.name not in NOT_IN_A_STORE)
