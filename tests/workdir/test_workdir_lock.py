"""A workdir has one run at a time; a lock ends with its process, on this host and on others."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from workdir.lock_file import Holder, read_holder
from workdir.workdir_lock import LOCK_FILE, WorkdirLock

from contract.errors import ConfigError
from tests.train.subprocesses import ROOT, free_port, run, run_main, start_main
from workdir import workdir_lock

OTHER_HOST = Holder("0123456789abcdef", "node-b", 77, "2026-01-02 03:04:05+00:00", "another kernel 1")


@pytest.fixture
def quick(monkeypatch):
    """Times of another host's lock in tenths of a second."""
    monkeypatch.setattr(workdir_lock, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(workdir_lock, "DEAD_SECONDS", 1.0)
    monkeypatch.setattr(workdir_lock, "DYING_SECONDS", 0.3)


def on_another_host(monkeypatch):
    """Makes the locks that are created from now on those of a host of their own each."""
    monkeypatch.setattr(workdir_lock, "lock_forever", lambda descriptor: f"kernel of {descriptor}")


def held_by(holder, folder, name=LOCK_FILE):
    """Leaves the lock of a process that does not renew it."""
    (folder / name).write_bytes(holder.to_json())


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_lock_names_its_process_and_leaves_no_file(tmp_path):
    with WorkdirLock(str(tmp_path)) as lock:
        assert files(tmp_path) == [LOCK_FILE]
        holder = read_holder(tmp_path / LOCK_FILE)
        assert (holder.id, holder.process_id, holder.host) == (lock.id, os.getpid(), os.uname().nodename)
        lock.check()
    assert files(tmp_path) == []


def test_a_second_lock_is_refused_while_the_first_is_held_even_by_a_process_that_does_not_run(tmp_path, quick):
    """No renewal is needed on one kernel: flock decides, also for a process that is suspended."""
    with WorkdirLock(str(tmp_path)) as lock, mock.patch("os.utime"):
        time.sleep(1.2)
        began = time.monotonic()
        with pytest.raises(ConfigError) as error, WorkdirLock(str(tmp_path), note=pytest.fail):
            pass
        assert time.monotonic() - began < 2
        assert f"is in use by process {os.getpid()} on {os.uname().nodename}, which started at 20" in str(error.value)
        assert str(error.value).endswith(": wait for its end, stop it, or choose another --workdir")
        lock.check()
    assert files(tmp_path) == []
    with WorkdirLock(str(tmp_path)):
        pass


HOLDER = """
import os, sys, time
from train.workdir_lock import WorkdirLock
with WorkdirLock(sys.argv[1]):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(30)
    print("held", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_the_lock_of_a_killed_process_is_free_at_once(how, tmp_path):
    """Also if nobody waits for the process, which is then a zombie, and if it leaves a child."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), how]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"in use by process {process.pid} on "), WorkdirLock(str(tmp_path)):
            pass
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        with WorkdirLock(str(tmp_path), note=pytest.fail):
            assert time.monotonic() - began < 1
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_the_lock_of_another_host_is_refused_when_it_is_renewed(tmp_path, quick, monkeypatch):
    with monkeypatch.context() as other:
        on_another_host(other)
        first = WorkdirLock(str(tmp_path))
        first.__enter__()
    notes = []
    began = time.monotonic()
    with pytest.raises(ConfigError, match="is in use by process"), WorkdirLock(str(tmp_path), note=notes.append):
        pass
    assert time.monotonic() - began < 0.8
    assert len(notes) == 1 and "waiting up to 1 s to see whether that process is alive" in notes[0]
    first.check()
    first.__exit__()
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        OTHER_HOST.to_json(),
        b"",
        b'{"id": "01234',
        b"null",
        json.dumps({"id": "../../elsewhere", "host": "h"}).encode(),
        json.dumps({"id": 5}).encode(),
    ],
)
def test_a_lock_that_is_not_renewed_is_replaced(content, tmp_path, quick):
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / LOCK_FILE).write_bytes(content)
    os.utime(workdir / LOCK_FILE, (2e9, 2e9))  # the clock of that host is wrong
    began = time.monotonic()
    with WorkdirLock(str(workdir), note=lambda line: None) as lock:
        assert 0.9 < time.monotonic() - began < 3
        assert read_holder(workdir / LOCK_FILE).id == lock.id
        assert files(workdir) == [LOCK_FILE] and files(tmp_path) == ["run"]
    assert files(workdir) == []


def test_the_note_names_the_process_of_the_other_host(tmp_path, quick):
    held_by(OTHER_HOST, tmp_path)
    notes = []
    with WorkdirLock(str(tmp_path), note=notes.append):
        pass
    assert "has the lock of process 77 on node-b, which started at 2026-01-02 03:04:05+00:00: waiting" in notes[0]


def test_a_process_that_died_while_it_replaced_a_lock_blocks_nobody(tmp_path, quick):
    second = Holder("fedcba9876543210", "node-c", 78, "later", "a third kernel 1")
    held_by(OTHER_HOST, tmp_path)
    held_by(second, tmp_path, f"{LOCK_FILE}.{OTHER_HOST.id}")
    with WorkdirLock(str(tmp_path), note=lambda line: None) as lock:
        lock.check()
        assert files(tmp_path) == [LOCK_FILE]


def test_a_lock_that_is_freed_during_the_wait_is_taken(tmp_path, quick):
    held_by(OTHER_HOST, tmp_path)
    free = threading.Timer(0.3, (tmp_path / LOCK_FILE).unlink)
    free.start()
    began = time.monotonic()
    with WorkdirLock(str(tmp_path), note=lambda line: None):
        assert time.monotonic() - began < 0.9
    assert files(tmp_path) == []


TAKERS = """
import json, multiprocessing, os, sys
from contract.errors import ConfigError
from train import workdir_lock

COUNT = 4
workdir_lock.RENEW_SECONDS, workdir_lock.DEAD_SECONDS, workdir_lock.DYING_SECONDS = 0.1, 1.0, 0.3

def take(folder, other_hosts, index, start, end, results):
    if other_hosts:
        workdir_lock.lock_forever = lambda descriptor: f"kernel {index}"
    start.wait()
    try:
        with workdir_lock.WorkdirLock(folder, note=lambda line: None) as lock:
            results.put("taken")
            end.wait()
            lock.check()
    except ConfigError as error:
        results.put(str(error))

context = multiprocessing.get_context("fork")
start, end, results = context.Barrier(COUNT), context.Event(), context.Queue()
arguments = sys.argv[1], sys.argv[2] == "True"
processes = [context.Process(target=take, args=(*arguments, k, start, end, results)) for k in range(COUNT)]
for process in processes:
    process.start()
outcomes = [results.get(timeout=20) for _ in processes]
held = os.listdir(sys.argv[1])
end.set()
for process in processes:
    process.join(10)
left = os.listdir(sys.argv[1])
print(json.dumps([outcomes, held, left, [process.exitcode for process in processes]]))
"""


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("other_hosts", [False, True])
def test_one_of_several_processes_wins(dead, other_hosts, tmp_path):
    """Four processes take a lock at the same moment, free or of a dead process, on one host and on four."""
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if dead:
            held_by(OTHER_HOST, folder)
        command = [sys.executable, "-c", TAKERS, str(folder), str(other_hosts)]
        printed = subprocess.run(command, cwd=ROOT, timeout=60, check=True, capture_output=True).stdout
        outcomes, held, left, exit_statuses = json.loads(printed)
        assert sorted(outcome == "taken" for outcome in outcomes) == [False] * 3 + [True], outcomes
        assert all("is in use by process" in outcome for outcome in outcomes if outcome != "taken")
        assert (held, left, exit_statuses) == ([LOCK_FILE], [], [0] * 4)


def test_a_process_that_lost_its_lock_ends_and_leaves_the_other_lock(tmp_path):
    with WorkdirLock(str(tmp_path)) as lock:
        held_by(OTHER_HOST, tmp_path, "other")
        os.replace(tmp_path / "other", tmp_path / LOCK_FILE)
        with pytest.raises(
            ConfigError, match=r"is in use by process 77 on node-b, .*: this process did not run for 60"
        ):
            lock.check()
    assert read_holder(tmp_path / LOCK_FILE) == OTHER_HOST
    (tmp_path / LOCK_FILE).unlink()
    with WorkdirLock(str(tmp_path)) as lock:
        (tmp_path / LOCK_FILE).unlink()
        with pytest.raises(ConfigError, match=r"run.lock is gone: somebody deleted it, or another run"):
            lock.check()


def test_a_file_system_without_hard_links(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=PermissionError(1, "Operation not permitted")))
    held_by(OTHER_HOST, tmp_path)
    with WorkdirLock(str(tmp_path), note=lambda line: None):
        with pytest.raises(ConfigError, match="is in use by process"), WorkdirLock(str(tmp_path)):
            pass
        assert files(tmp_path) == [LOCK_FILE]
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", mock.Mock(side_effect=OSError(30, "Read-only file system")))
    with (
        pytest.raises(ConfigError, match=r"^--workdir=.* cannot be locked: .*: Read-only file system: choose another"),
        WorkdirLock(str(tmp_path)),
    ):
        pass
    monkeypatch.undo()
    assert files(tmp_path) == []


def test_other_users_see_who_holds_a_lock(tmp_path):
    before = os.umask(0o077)
    try:
        with WorkdirLock(str(tmp_path)):
            assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])
def test_a_lock_that_is_no_file_is_named(make, tmp_path):
    make(tmp_path / LOCK_FILE)
    with (
        pytest.raises(ConfigError, match=r"cannot be locked: .*run.lock: it is no regular file: remove it"),
        WorkdirLock(str(tmp_path)),
    ):
        pass


def test_files_of_processes_that_were_killed_while_they_waited_are_removed(tmp_path):
    old, new = (tmp_path / f"{LOCK_FILE}.{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    with WorkdirLock(str(tmp_path)):
        assert new.exists() and not old.exists()


def arguments_of(corpus, workdir, **fields):
    fields = {"data.path": corpus / "text", "data.cache_dir": corpus / "cache", "train.log_every": 1, **fields}
    return [
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]


def test_a_second_run_on_a_workdir_is_refused_and_a_killed_one_is_continued(corpus, tmp_path):
    """The second run has another seed and another corpus, whose token store it must not build."""
    workdir = tmp_path / "run"
    endless = {
        "optimizer.schedule": "constant",
        "train.steps": 1_000_000,
        "train.eval_every": 1_000_000,
        "train.checkpoint_every": 2,
    }
    first = start_main(*arguments_of(corpus, workdir, **endless))
    try:
        end = time.monotonic() + 120
        while not (workdir / "checkpoints" / "4").exists():
            assert first.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        before = (workdir / "config.json").read_bytes()
        other = {"seed": 5, "data.cache_dir": tmp_path / "cache", "train.steps": 2}
        status, out, err = run_main(*arguments_of(corpus, workdir, **other))
        assert (status, out) == (1, "") and len(err.splitlines()) == 1
        assert f"error: --workdir={workdir} is in use by process {first.pid} on " in err
        assert not (tmp_path / "cache").exists() and (workdir / "config.json").read_bytes() == before
    finally:
        first.kill()
    steps = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()) + 1
    status, out, err = run_main(*arguments_of(corpus, workdir, **endless | {"train.steps": steps}))
    assert status == 0 and "continuing from step" in out and err == ""
    assert LOCK_FILE not in files(workdir)
    first.communicate()


TWO_FOLDERS = """
import json, sys, time
import train.start
from train import main
from train.command import run_command
train.start.SHARED_SECONDS = 2
index = sys.argv[-1]
sys.argv[1:] = ARGUMENTS + [f"--workdir=FOLDER/{index}", f"--process_id={index}"]
began = time.monotonic()
try:
    main.main()
except Exception as error:
    print(json.dumps([f"{type(error).__name__}: {error}", time.monotonic() - began]))
"""


def test_processes_with_a_workdir_each_end_in_one_line(corpus, tmp_path):
    arguments = [f"--config={ROOT / 'tests' / 'small_config.py'}", *arguments_of(corpus, ""), "--num_processes=2"]
    arguments = [argument for argument in arguments if not argument.startswith("--workdir")]
    arguments.append(f"--coordinator_address=localhost:{free_port()}")
    program = TWO_FOLDERS.replace("ARGUMENTS", repr(arguments)).replace("FOLDER", str(tmp_path))
    results = run(program, devices=1, processes=2)
    for line, _ in results:
        assert line.startswith(f"ConfigError: process 1 ({os.uname().nodename}): --workdir={tmp_path}/1 (")
        assert "is not the folder of process 0, whose run.lock has not appeared there in 2 s: give all" in line
    assert files(tmp_path / "0") == files(tmp_path / "1") == []
