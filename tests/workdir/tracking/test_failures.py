"""Writes that fail: the run's own files end the training in one line, and a copy elsewhere ends alone."""

import json
import os
import re
import time
from typing import ClassVar

import pytest
from workdir.tracking import guarded
from workdir.tracking.writer import TRACKERS, MetricsWriter

from contract.errors import ConfigError
from tests.table import small_experiment
from tests.workdir.tracking.test_copies import run_program, train_losses, wandb_records, wandb_rows
from tests.workdir.tracking.test_writer import event_files, events_of
from train.loop import train_and_evaluate
from workdir.metrics import read_metrics
from workdir.run_config import read_config


class Broken:
    """A tracker whose methods fail or hang as a test chooses."""

    address = "nowhere"
    written: ClassVar[list] = []

    def __init__(self, run):
        self.fails_at = {"start": 0, "write": 2, "hang": 2, "close": 99}[run.config["how"]]
        self.how = run.config["how"]
        self.written.clear()
        if self.how == "start":
            raise RuntimeError("no network\nretry later")

    def scalars(self, step, values):
        if step == self.fails_at:
            if self.how == "hang":
                time.sleep(60)
            raise OSError(28, "No space left on device", "elsewhere/file")
        self.written.append(step)

    def text(self, step, name, text):
        self.written.append(name)

    def close(self, *, failed):
        if self.how == "close":
            raise TimeoutError("not uploaded")
        self.written.append("closed")


def write_three_steps(folder, how, monkeypatch):
    """What the broken tracker has received, and the warnings."""
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    monkeypatch.setattr(guarded, "_WRITE_SECONDS", 0.5)
    warnings = []
    config = {"how": how, "train": {"trackers": ["broken", "tensorboard"], "tracker_project": "p"}}
    writer = MetricsWriter(folder, config, resume_step=0, warn=warnings.append)
    began = time.monotonic()
    for step in (1, 2, 3):
        writer.write(step, "train", {"loss": float(step)})
    writer.write_text(3, "sample", "text")
    writer.close()
    assert time.monotonic() - began < 5
    [file] = event_files(folder)
    assert [event.step for event in events_of(file) for value in event.summary.value][1:] == [1, 2, 3, 3]
    assert [line["step"] for line in read_metrics(folder)] == [1, 2, 3]
    return list(Broken.written), warnings


def test_a_copy_that_fails_is_reported_once_and_receives_nothing_more(tmp_path, monkeypatch):
    written, warnings = write_three_steps(tmp_path, "write", monkeypatch)
    assert written == [1]
    assert warnings == [
        "the tracker broken failed at step 2, and receives nothing more: OSError: [Errno 28] No space left on device: "
        "'elsewhere/file'; metrics.jsonl is complete"
    ]


def test_a_copy_that_does_not_answer_is_reported_within_its_time(tmp_path, monkeypatch):
    written, [warning] = write_three_steps(tmp_path, "hang", monkeypatch)
    assert written == [1]
    assert warning.startswith("the tracker broken failed at step 2, and receives nothing more: TimeoutError: no answer")


def test_a_copy_that_fails_at_the_end_is_reported(tmp_path, monkeypatch):
    written, warnings = write_three_steps(tmp_path, "close", monkeypatch)
    assert written == [1, 2, 3, "sample"]
    assert warnings == [
        "the tracker broken failed at the end of the run: TimeoutError: not uploaded; metrics.jsonl is complete"
    ]


def test_a_copy_that_cannot_start_is_refused_in_one_line(tmp_path, monkeypatch):
    message = (
        r"^train\.trackers has 'broken', which cannot start: RuntimeError: no network retry later: remove it from "
        r"train\.trackers, or see its offline mode in docs/tracking\.md$"
    )
    with pytest.raises(ConfigError, match=message):
        write_three_steps(tmp_path, "start", monkeypatch)


def test_wandb_whose_service_has_died_is_reported_once(tmp_path):
    pytest.importorskip("wandb")
    program = """
import contextlib, os, pathlib, signal, sys
from train.tracking.writer import MetricsWriter

config = {"train": {"trackers": ["wandb"], "tracker_project": "p"}}
writer = MetricsWriter(sys.argv[1], config, resume_step=0, warn=lambda text: print("WARNING", text))
writer.write(1, "train", {"loss": 1.0})
services = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
            services.append(int(folder.name))
[service] = services
os.kill(service, signal.SIGKILL)
for step in range(2, 50):
    writer.write(step, "train", {"loss": 1.0})
writer.close()
"""
    out = run_program(program, str(tmp_path), WANDB_MODE="offline")
    assert out.count("WARNING") == 1
    assert re.search("WARNING the tracker wandb failed at (step|the end of the run)", out)  # when it is noticed
    assert len(read_metrics(tmp_path)) == 49


def fill_disk(path):
    """Makes every write to a file that this process has open fail as on a full disk."""
    full = os.open("/dev/full", os.O_WRONLY)
    open_at = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    found = [int(fd) for fd in open_at if os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath(path)]
    assert found
    for fd in found:
        os.dup2(full, fd)
    os.close(full)


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_a_full_disk_is_one_line_that_names_the_workdir(tmp_path, name):
    config = {"train": {"trackers": ["tensorboard"], "tracker_project": "p"}}
    writer = MetricsWriter(tmp_path, config, resume_step=0, warn=pytest.fail)
    writer.write(1, "train", {"loss": 1.0})
    fill_disk(event_files(tmp_path)[0] if name == "tensorboard" else tmp_path / name)
    for _ in range(30):  # more than a queue holds
        with pytest.raises(ConfigError, match=r"^--workdir=.* cannot be written: No space left on device: .*\Z"):
            writer.write(2, "train", {"loss": 1.0})
    writer.close(failed=True)


@pytest.fixture(scope="module")
def experiment(corpus):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}

    def make(**fields):
        return small_experiment("clm", "decoder_only", **text, train__trackers=("tensorboard", "wandb"), **fields)

    return make


def test_a_run_writes_all_of_it_to_every_tracker_and_ends_on_a_full_disk(experiment, tmp_path, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert train_and_evaluate(experiment(), str(tmp_path))
    wandb.teardown()  # waits until its service has written the files
    printed = capsys.readouterr().out
    assert f"wandb: offline: to upload it, wandb sync {tmp_path}/wandb/offline-run-*-" in printed
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = wandb_rows(wandb_records(file))
    assert train_losses(rows) == [(line["step"], line["loss"]) for line in read_metrics(tmp_path, "train")]
    [page] = tmp_path.glob("wandb/offline-run-*/files/media/html/sample_*.html")
    [events] = event_files(tmp_path)
    texts = {v.tag: v.tensor.string_val for event in events_of(events) for v in event.summary.value}
    sample = texts["sample/text_summary"][0].decode()
    assert "a sample (clm), from the held-out" in page.read_text()
    assert all(line[4:] in printed for line in sample.splitlines()) and "| " in sample
    assert json.loads(texts["config/text_summary"][0]) == read_config(tmp_path)

    write = MetricsWriter.write

    def write_to_a_full_disk(self, step, split, metrics):
        fill_disk(event_files(tmp_path)[-1])
        write(self, step, split, metrics)

    monkeypatch.setattr(MetricsWriter, "write", write_to_a_full_disk)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        train_and_evaluate(experiment(train__steps=4, optimizer__cycles="0-2"), str(tmp_path))
    assert time.monotonic() - began < 60
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["2"]
    assert len(set(path.name.rpartition("-")[2] for path in tmp_path.glob("wandb/offline-run-*"))) == 1
