"""`python -m data.prepare`: what it prints, that training finds what it built, and how it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

from configs.base import get_config
from data.prepare import main, parse_flags
from data.store import open_or_build
from data.tokenizer import make_tokenizer
from tests.data.corpus import data_fields, write_texts

ROOT = Path(__file__).parents[2]


def test_flags_have_the_configs_names_and_defaults():
    config = get_config().data
    flags = vars(parse_flags([]))
    not_in_a_store = {"num_sentinels", "mode_tokens"}
    assert {name: flags[name] for name in flags.keys() - not_in_a_store} == {
        name: config[name] for name in flags.keys() - not_in_a_store
    }
    assert set(flags) <= set(config)


def test_training_finds_what_was_prepared(tmp_path, capsys, monkeypatch):
    write_texts(tmp_path, ["ab", "", "b"])
    fields = data_fields(tmp_path, num_sentinels=100)
    assert main(["--source=text", f"--path={fields.path}", f"--cache_dir={fields.cache_dir}"]) == 0
    printed = capsys.readouterr().out
    monkeypatch.setattr("data.store.write_store", None)  # building again would raise
    store = open_or_build(fields, make_tokenizer(fields))
    assert re.search(rf"store +{store.folder}\n", printed)
    for line in (r"documents +2", r"tokens +5 as uint16", r"bytes of text +3", r"unigram entropy +0\.6365 nats"):
        assert re.search(line, printed)
    assert re.search(r"left out +1 empty documents, 0 unreadable files", printed)


def test_what_was_skipped_is_named(tmp_path, capsys):
    write_texts(tmp_path, ["ab", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    arguments = ["--source=text", f"--path={tmp_path}/text", f"--cache_dir={tmp_path}/c", "--on_unreadable=skip"]
    assert main(arguments) == 0
    assert f"unreadable: {tmp_path}/text/001.txt\n" in capsys.readouterr().out


def test_a_bad_path_is_one_line_and_a_status(tmp_path):
    command = [sys.executable, "-m", "data.prepare", "--source=text", "--path=nowhere", f"--cache_dir={tmp_path}/c"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"error: data\.path='nowhere' does not exist: .*\n", done.stderr)
    assert not (tmp_path / "c").exists()
