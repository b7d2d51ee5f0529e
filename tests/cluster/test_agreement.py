"""Processes that differ in config, corpus or code end before the first step, with one line that names the process."""

import re
import shutil
import socket
import time

import pytest

from cluster.agreement import agreement, code_digest, describe_disagreement
from tests.train.subprocesses import ROOT, free_port, run, start_main

HOST = re.escape(socket.gethostname())


def report(host, error=None, **values):
    return {"host": host, "error": error, "values": values}


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([report("a", x=1), report("b", x=1)], ""),
        (
            [report("a", x=1, y="s"), report("b", x=2, y="s")],
            "process 1 (b) has x=2, and process 0 (a) has x=1: "
            "give every process of a run the same config, corpus, code and workdir",
        ),
        ([report("a", x=1), report("b", x=2), report("c", x=2)], "process 0 (a) has x=1, and process 1 (b) has x=2: "),
        ([report("a", x=None), report("b")], "process 1 (b) has no x, and process 0 (a) has x=null: "),
        (
            [report("a", x=1), report("b", x=1), report("c", x=2), report("d", x=3)],
            "process 2 (c) has x=2, and process 0 (a) has x=1; process 3 (d) differ too: ",
        ),
        (
            [report("a", p=1, q=1, r=1, s=1, t=1), report("b", p=2, q=2, r=2, s=2, t=2)],
            "process 1 (b) has p=2, q=2, r=2 and 2 more, and process 0 (a) has p=1, q=1, r=1: ",
        ),
        (
            [report("a", x=1), report("b", "data.path='x' does not exist")],
            "process 1 (b): data.path='x' does not exist",
        ),
    ],
)
def test_the_line_names_the_process_and_what_differs(reports, line):
    assert describe_disagreement(reports).startswith(line) and bool(line) == bool(describe_disagreement(reports))


def test_a_single_process_agrees_with_itself():
    with agreement() as values:
        values["x"] = 1
    with pytest.raises(ZeroDivisionError), agreement():
        raise ZeroDivisionError


PROGRAM = """
import json
distributed()
from contract.errors import ConfigError
from train.agreement import agreement

lines = []
for stage in range(4):
    try:
        with agreement() as values:
            values["x"] = [0, int(jax.process_index() == 2), 0, 0][stage]
            if stage == 2 and jax.process_index() == 1:
                raise ZeroDivisionError("no rows")
        lines.append("")
    except (ConfigError, ZeroDivisionError) as error:
        lines.append(f"{type(error).__name__}: {error}")
print(json.dumps(lines))
"""


def test_three_processes_agree_and_disagree_several_times():
    first, second, third = run(PROGRAM, devices=1, processes=3)
    host, needed = socket.gethostname(), "give every process of a run the same config, corpus, code and workdir"
    differs = f"ConfigError: process 2 ({host}) has x=1, and process 0 ({host}) has x=0: {needed}"
    assert first == third == ["", differs, f"ConfigError: process 1 ({host}): ZeroDivisionError: no rows", ""]
    assert second == ["", differs, "ZeroDivisionError: no rows", ""]


def test_the_code_digest_changes_with_any_source_file(tmp_path, monkeypatch):
    monkeypatch.setattr("cluster.agreement._ROOT", copy_of_code(tmp_path / "same"))
    same = code_digest()
    monkeypatch.setattr("cluster.agreement._ROOT", copy_of_code(tmp_path / "other", changed=True))
    other = code_digest()
    monkeypatch.undo()
    assert same == code_digest() != other


def copy_of_code(folder, *, changed=False):
    for package in ("contract", "objectives", "data", "models", "train", "configs", "tests"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    if changed:
        with open(folder / "objectives" / "algebra" / "noise.py", "a") as file:
            file.write("# a later version\n")
    return folder


def copy_of_corpus(corpus, folder, *, changed=False):
    """Copies some texts. If `changed`, one character of one file is another."""
    (folder / "text").mkdir(parents=True)
    for path in sorted((corpus / "text").iterdir())[:6]:
        text = path.read_bytes()
        (folder / "text" / path.name).write_bytes(text)
    if changed:
        (folder / "text" / path.name).write_bytes(text[:100] + b"~" + text[101:])
    return folder


def run_two(folders, *flags, tmp_path, second=(), codes=(ROOT, ROOT)):
    """Runs two processes with a time limit: exit statuses, outputs, errors without gloo's greeting, and seconds."""
    address, started = f"--coordinator_address=localhost:{free_port()}", []
    began = time.monotonic()
    try:
        for index, (folder, code) in enumerate(zip(folders, codes, strict=True)):
            arguments = [f"--workdir={tmp_path / 'run'}", "--config.train.eval_every=2", *flags]
            if not any("train.steps" in flag for flag in flags):
                arguments.append("--config.train.steps=2")
            arguments += [address, "--num_processes=2", f"--process_id={index}", *(second if index else ())]
            cache = f"--config.data.cache_dir={folder / 'cache'}"
            started.append(start_main(*arguments, "--config.data.path=text", cache, cwd=folder, code=code))
        printed = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    outs, errs = zip(*printed, strict=True)
    return [process.returncode for process in started], outs, errs, time.monotonic() - began


def assert_refused(result, line, tmp_path):
    statuses, outs, errs, _ = result
    assert statuses == [1, 1], errs
    for err in errs:
        assert re.fullmatch(f"error: {line}\n", err), err
    assert not any("step" in out for out in outs)
    assert not list(tmp_path.glob("run/metrics.jsonl"))


def test_equal_texts_in_different_folders_agree(corpus, tmp_path):
    """Their modification times and their caches differ."""
    folders = [copy_of_corpus(corpus, tmp_path / name) for name in ("one", "other")]
    statuses, outs, errs, _ = run_two(folders, tmp_path=tmp_path, second=["--config.data.reader_threads=1"])
    assert statuses == [0, 0], errs
    assert "done: 2 steps" in outs[0] and (tmp_path / "run" / "metrics.jsonl").exists()
    statuses, outs, errs, _ = run_two(
        folders, "--config.train.steps=4", "--config.optimizer.cycles=0-2", tmp_path=tmp_path
    )
    assert statuses == [0, 0], errs
    assert "continuing from step 2" in outs[0] and "done: 4 steps" in outs[0]


def test_another_corpus(corpus, tmp_path):
    folders = [copy_of_corpus(corpus, tmp_path / "one"), copy_of_corpus(corpus, tmp_path / "other", changed=True)]
    digest = r'corpus\.fingerprint="\w+"'
    line = rf"process 1 \({HOST}\) has {digest}, and process 0 \({HOST}\) has {digest}: give every process .*"
    assert_refused(run_two(folders, tmp_path=tmp_path), line, tmp_path)


def test_another_config(corpus, tmp_path):
    folders = [copy_of_corpus(corpus, tmp_path / "one")] * 2
    line = rf"process 1 \({HOST}\) has seed=5, and process 0 \({HOST}\) has seed=0: give every process .*"
    assert_refused(run_two(folders, tmp_path=tmp_path, second=["--config.seed=5"]), line, tmp_path)


def test_other_code(corpus, tmp_path):
    folders = [copy_of_corpus(corpus, tmp_path / "one")] * 2
    codes = (ROOT, copy_of_code(tmp_path / "code", changed=True))
    line = rf'process 1 \({HOST}\) has code="\w+", and process 0 \({HOST}\) has code="{code_digest()}": give every .*'
    assert_refused(run_two(folders, tmp_path=tmp_path, codes=codes), line, tmp_path)


def test_a_corpus_that_is_missing_on_one_host(corpus, tmp_path):
    (tmp_path / "empty").mkdir()
    folders = [copy_of_corpus(corpus, tmp_path / "one"), tmp_path / "empty"]
    line = rf"process 1 \({HOST}\): data.path='text' does not exist: name files, .*"
    assert_refused(run_two(folders, tmp_path=tmp_path), line, tmp_path)


def test_the_same_error_in_all_processes_is_unchanged(corpus, tmp_path):
    folders = [copy_of_corpus(corpus, tmp_path / "one")] * 2
    result = run_two(folders, "--config.train.batch_size=0", tmp_path=tmp_path)
    assert_refused(result, r"train.batch_size=0 must be from 1 to \d+", tmp_path)
