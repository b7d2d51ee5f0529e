"""Stores that several processes prepare: equal to those of one, after kills, errors and races too."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.errors import ConfigError
from data.prepare import prepare_store
from data.prepare.__main__ import main
from data.sources import from_files, open_source
from data.sources import text as text_source
from data.sources.files import split_text
from data.sources.raw import Skipped
from data.store import build
from data.store.store import TokenStore
from tests.data.corpus import corpus_config

ROOT = Path(__file__).parents[2]
TIME_LIMIT = 60.0


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Forty files of thirty lines each: some are copies, one is empty."""
    folder = tmp_path_factory.mktemp("prepared") / "text"
    folder.mkdir()
    chance = random.Random(0)
    words = [f"word{k}" for k in range(500)]
    for k in range(40):
        lines = [" ".join(chance.choices(words, k=chance.randint(0, 30))) for _ in range(30)]
        (folder / f"{k:02}.txt").write_text("" if k == 7 else "\n".join([*lines, "the same line in every file"]))
    return folder


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(build, "_LEAST_BYTES", 4000)
    monkeypatch.setattr(build, "_MOST_BYTES", 4000)


def flags(texts, cache, *others):
    return ["prepare", "--source=text", f"--path={texts}", "--document_per=line", f"--cache_dir={cache}", *others]


def prepared(texts, cache, *others):
    """Returns the files of the store: name -> contents."""
    main(flags(texts, cache, *others))
    return contents(cache)


def contents(cache):
    [store] = Path(cache).iterdir()
    return {path.name: path.read_bytes() for path in store.iterdir()}


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    """The store of one process and one shard."""
    return prepared(texts, tmp_path_factory.mktemp("one"), "--workers=1")


def test_a_store_does_not_depend_on_shards_and_workers(texts, expected, tmp_path, monkeypatch):
    assert prepared(texts, tmp_path / "shards", "--workers=1") == expected
    assert prepared(texts, tmp_path / "workers", "--workers=2") == expected


# Prepares with shards so small that a kill comes between two of them.
KILLED = """
import sys
from contract.program import run_program
from data import build, prepare
build._LEAST_BYTES = build._MOST_BYTES = 4000
if __name__ == "__main__":
    run_program(lambda: prepare.main(sys.argv[1:]))
"""


def start(texts, cache, *others):
    command = [sys.executable, "-c", KILLED, *flags(texts, cache, *others)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def finished_shards(cache):
    return {path: path.stat().st_ino for path in Path(cache).glob(".*.prepare/shards/[!.]*/meta.json")}


def test_a_prepare_that_is_killed_three_times_continues(texts, expected, tmp_path):
    cache, chance, kept = tmp_path / "cache", random.Random(time.time()), {}
    for _ in range(3):
        process = start(texts, cache, "--workers=1")
        wanted, end = len(kept) + chance.randint(1, 4), time.monotonic() + TIME_LIMIT
        while len(finished_shards(cache)) < wanted and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=TIME_LIMIT)
        if process.returncode != -signal.SIGKILL:  # it was faster
            assert process.returncode == 0, errors
            break
        found = finished_shards(cache)
        assert kept.items() <= found.items()  # the same files: no finished shard was written again
        kept = found
    process = start(texts, cache, "--workers=1")
    _, errors = process.communicate(timeout=TIME_LIMIT)
    assert process.returncode == 0, errors
    assert contents(cache) == expected and kept


def test_a_killed_worker_is_one_line_and_what_is_finished_stays(texts, expected, tmp_path):
    cache = tmp_path / "cache"
    program = KILLED.replace(
        "if __name__",
        "import os, signal\nfrom data import workers\n"
        "real = workers._Worker.begin\n"
        "def begin(self, task, *rest):\n"
        "    if task.folder.name == '000003': os.kill(self.process.pid, signal.SIGKILL)\n"
        "    real(self, task, *rest)\n"
        "workers._Worker.begin = begin\nif __name__",
    )
    command = [sys.executable, "-c", program, *flags(texts, cache, "--workers=2")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(lines) == 1 and "Traceback" not in done.stderr
    assert "a worker process ended (SIGKILL" in lines[0] and f"{texts}/" in lines[0]
    assert finished_shards(cache)
    assert prepared(texts, cache, "--workers=1") == expected


def prepare_with(texts, cache, at_start):
    """Runs data.prepare in a session of its own, with a statement right after the start of each worker, named `pid`.

    The worker has its arguments only after the statement.
    """
    program = KILLED.replace(
        "if __name__",
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background of a shell ignores it
        "from multiprocessing import util\n"
        "real = util.spawnv_passfds\n"
        "def spawn(path, args, fds):\n"
        "    pid = real(path, args, fds)\n"
        f"    if 'spawn_main' in str(args): {at_start}\n"
        "    return pid\n"
        "util.spawnv_passfds = spawn\nif __name__",
    )
    command = [sys.executable, "-c", program, *flags(texts, cache, "--workers=2")]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": TIME_LIMIT, "start_new_session": True}
    return subprocess.run(command, **options)


def test_a_worker_that_is_killed_while_it_starts_is_one_line(texts, tmp_path):
    done = prepare_with(texts, tmp_path, "os.kill(pid, signal.SIGKILL); time.sleep(0.1)")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "error: a worker process ended (SIGKILL" in done.stderr


@pytest.mark.parametrize(
    ("send", "status"), [("os.killpg(0, signal.SIGINT)", 130), ("os.kill(os.getpid(), signal.SIGTERM)", 143)]
)
def test_a_signal_while_workers_start_is_one_line(texts, tmp_path, send, status):
    """Ctrl-C to the group of processes, SIGTERM to the parent, while the worker waits for its arguments."""
    done = prepare_with(texts, tmp_path, f"time.sleep(0.3); {send}")
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1), done.stderr
    assert "stopped by" in done.stderr


def test_an_error_in_a_worker_names_the_file_and_leaves_nothing(texts, tmp_path):
    shutil.copytree(texts, tmp_path / "text")
    (tmp_path / "text" / "20.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=rf"{tmp_path}/text/20.txt is not UTF-8"):
        main(flags(tmp_path / "text", tmp_path / "cache", "--workers=2"))
    assert not list((tmp_path / "cache").iterdir())


def test_a_read_error_keeps_what_is_finished(texts, expected, tmp_path, monkeypatch):
    """The store has the same name when the permissions are right, so the same command continues."""

    def open_contents(path, *rest):
        if path.endswith("/20.txt"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *rest)

    real = text_source.open_contents
    with monkeypatch.context() as unreadable:
        unreadable.setattr(text_source, "open_contents", open_contents)
        with pytest.raises(ConfigError, match=rf"{texts}/20.txt cannot be read \(Permission denied\)") as error:
            main(flags(texts, tmp_path, "--workers=1"))
    assert type(pickle.loads(pickle.dumps(error.value.__cause__))) is from_files.ReadError  # as a worker sends it
    kept = finished_shards(tmp_path)
    assert len(kept) > 2
    real_write, written = build.write_shard, []

    def write_shard(folder, *rest, **options):
        written.append(folder.name)
        return real_write(folder, *rest, **options)

    monkeypatch.setattr(build, "write_shard", write_shard)
    assert prepared(texts, tmp_path, "--workers=1") == expected
    assert written and not {path.parent.name for path in kept} & set(written)


def test_two_prepares_of_one_store_at_once(texts, tmp_path, monkeypatch):
    def prepare_again(*_):
        with pytest.raises(
            ConfigError, match=rf"process {os.getpid()} on .* prepares the token store {tmp_path}.*wait"
        ):
            main(flags(texts, tmp_path, "--workers=1"))
        raise ConfigError("the first one")

    monkeypatch.setattr(prepare_store, "build_store", prepare_again)
    with pytest.raises(ConfigError, match="the first one"):
        main(flags(texts, tmp_path, "--workers=1"))
    assert not list(tmp_path.iterdir())


def test_a_damaged_shard_is_written_again(texts, expected, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(build, "assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            main(flags(texts, tmp_path, "--workers=1"))
    [damaged] = tmp_path.glob(".*.prepare/shards/000002/tokens.bin")
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    assert prepared(texts, tmp_path, "--workers=1") == expected


def test_shards_of_another_plan_are_not_used(texts, expected, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(build, "assemble", stop)
        stopped.setattr(build, "_LEAST_BYTES", 8000)
        stopped.setattr(build, "_MOST_BYTES", 8000)
        with pytest.raises(KeyboardInterrupt):
            main(flags(texts, tmp_path, "--workers=1"))
    assert finished_shards(tmp_path)
    assert prepared(texts, tmp_path, "--workers=1") == expected


def test_the_work_folder_of_a_finished_store_is_removed(texts, tmp_path, capsys):
    prepared(texts, tmp_path, "--workers=1")
    [store] = tmp_path.iterdir()
    (tmp_path / f".{store.name}.prepare" / "shards").mkdir(parents=True)
    main(flags(texts, tmp_path, "--workers=1"))
    assert [path.name for path in tmp_path.iterdir()] == [store.name]
    assert len(TokenStore(store)) and "read  " in capsys.readouterr().out


def test_shards_of_another_store_are_named(texts, tmp_path, capsys):
    """A corpus that has changed has a store of another name."""
    left = [tmp_path / f".text-{k}.prepare" for k in (1, 2, 3)]
    for work in left:
        (work / "shards").mkdir(parents=True)
        os.utime(work / "shards", (0, 0))
    (tmp_path / ".text-4.prepare" / "shards").mkdir(parents=True)  # of a command that has just begun
    with prepare_store._locked(left[0]):  # being prepared
        main(flags(texts, tmp_path, "--workers=1"))
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and f"{left[1]} and 1 more has shards of another store" in notes[0]
    assert all(work.is_dir() for work in left)


@pytest.mark.parametrize("range_bytes", [40, 97, 1000])
def test_parts_of_a_file_are_the_file(tmp_path, monkeypatch, range_bytes):
    """The bounds of ranges are at the start, in the middle and at the end of lines, also of blank ones."""
    chance = random.Random(0)
    lines = [json.dumps({"text": f"line {k} " + "x" * chance.randint(0, 150)}) for k in range(60)]
    for k in (3, 20, 40):
        lines[k] = ["", "no JSON", "  "][k % 3]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    fields = ["prepare", "--source=jsonl", f"--path={tmp_path}/a.jsonl", "--on_unreadable=skip", "--workers=1"]
    main([*fields, f"--cache_dir={tmp_path}/whole"])
    monkeypatch.setattr(from_files, "_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(build, "_LEAST_BYTES", range_bytes)
    main([*fields, f"--cache_dir={tmp_path}/parts"])
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    meta = json.loads(contents(tmp_path / "parts")["meta.json"])
    assert (meta["skipped_lines"], meta["first_skipped_line"]) == (1, f"{tmp_path}/a.jsonl:41")


def test_an_unreadable_file_of_several_parts_counts_once(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text")
    (tmp_path / "text" / "b.txt").write_bytes(b"line\n" * 3000 + b"\xff\n")
    monkeypatch.setattr(from_files, "_RANGE_BYTES", 1000)  # shards have 4,000 bytes
    files = prepared(tmp_path / "text", tmp_path / "cache", "--workers=1", "--on_unreadable=skip")
    assert json.loads(files["meta.json"])["skipped_files"] == [f"{tmp_path}/text/b.txt"]


@pytest.mark.parametrize("document_per", ["line", "paragraph"])
def test_parts_of_a_text_are_the_text(tmp_path, monkeypatch, document_per):
    """Paragraphs across several ranges, ranges without a paragraph, and blank lines of spaces of more than one byte."""
    chance = random.Random(0)
    lines = [
        "\u00fc" * chance.randint(1, 20) if chance.random() < 0.7 else chance.choice(["", " ", "\u3000\u3000"])
        for _ in range(200)
    ]
    text = "\n".join(lines).replace("\n \n", "\r\n\r\n")
    expected = [part for part in split_text(text, document_per) if part.strip()]
    (tmp_path / "a.txt").write_bytes(text.encode())
    fields = {"path": f"{tmp_path}/a.txt", "document_per": document_per}
    for range_bytes in (1, 2, 3, 7, 50, 1000, 10**6):
        monkeypatch.setattr(from_files, "_RANGE_BYTES", range_bytes)
        monkeypatch.setattr(text_source, "_BACKWARD_BYTES", 5)
        source = open_source(corpus_config(tmp_path, **fields))
        assert [document.text for document in source.documents(Skipped())] == expected
        assert len(source.parts) == max(len(text.encode()) // range_bytes, 1)
