"""metrics.jsonl and the trackers: their contents, continued runs, and failures that do not end the training."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from typing import ClassVar
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from contract.errors import STOPS, ConfigError
from tests.train.subprocesses import ROOT
from workdir.metrics import MetricsWriter, read_metrics
from workdir.trackers import TRACKERS, check_trackers, stable_run_id

CONFIG = {"seed": 3, "model": {"d_model": 32}}
SAMPLE = "prompt | a <b> & c\n\nmodel  | # d"


def writer_of(workdir, names=("tensorboard",), resume_step=0, warn=pytest.fail, **config):
    config = CONFIG | {"train": {"trackers": list(names), "tracker_project": "trials"}} | config
    return MetricsWriter(workdir, config, resume_step=resume_step, warn=warn)


def write(workdir, resume_step, steps, names=("tensorboard",)):
    writer = writer_of(workdir, names, resume_step)
    for step in steps:
        if step:
            writer.write(step, "train", {"loss": np.float32(1 / step), "tokens": step})
        if step % 2 == 0:
            writer.write(step, "eval", {"loss": 2.0 / max(step, 1)})
    writer.close()


def test_lines_by_split_in_their_order_without_an_incomplete_last_one(tmp_path):
    write(tmp_path, 0, [2])
    path = tmp_path / "metrics.jsonl"
    assert path.read_text() == (
        '{"step": 2, "split": "train", "loss": 0.5, "tokens": 2}\n{"step": 2, "split": "eval", "loss": 1.0}\n'
    )
    path.write_text(path.read_text() + '{"step": 3, "split": "tra')
    assert read_metrics(tmp_path, "eval") == [{"step": 2, "split": "eval", "loss": 1.0}]
    assert [line["split"] for line in read_metrics(tmp_path)] == ["train", "eval"]
    with pytest.raises(ConfigError, match=r"nowhere is not the folder of a run: .*metrics\.jsonl: No such file"):
        read_metrics(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "line",
    ["my notes", "[1]", '{"split": "train"}', '{"step": null, "split": "train"}', '{"step": 1}',
     '{"step": 1, "split": "eval", "loss": "x"}'],
)  # fmt: skip
def test_other_lines_are_refused_by_number_and_stay(tmp_path, line):
    text = f'{{"step": 1, "split": "train"}}\n{line}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    for resume_step in (0, 4):
        with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is not a line of metrics: move the file away"):
            writer_of(tmp_path, resume_step=resume_step)
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_nan_and_infinity_are_null(tmp_path):
    writer = writer_of(tmp_path)
    writer.write(1, "train", {"loss": jnp.float32("nan"), "perplexity": math.inf, "accuracy": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()  # before the file is closed
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert strict == {"step": 1, "split": "train", "loss": None, "perplexity": None, "accuracy": 0.5}
    writer.close()


@pytest.mark.parametrize("killed_after", [3, 4, 5])
def test_a_resumed_runs_file_is_the_uninterrupted_runs(tmp_path, killed_after):
    write(tmp_path / "whole", 0, range(9), names=())
    write(tmp_path / "killed", 0, range(killed_after + 1), names=())
    checkpoint = 2 if killed_after < 4 else 4
    with open(tmp_path / "killed" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "split": "tra')  # SIGKILL
    write(tmp_path / "killed", checkpoint, range(checkpoint + 1, 9), names=())
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    write(tmp_path / "killed", 0, [1], names=())
    assert [line["step"] for line in read_metrics(tmp_path / "killed")] == [1], "a new run removes all lines"
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["metrics.jsonl"]


def event_files(workdir):
    """TensorBoard's files by the step that they continue from: .from_0, .from_2."""
    return sorted((workdir / "tensorboard").iterdir(), key=lambda path: path.suffix)


def events_of(path):
    """The events of a TFRecord file: uint64 length, uint32 checksum, the bytes, uint32 checksum."""
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12 : 12 + length])
        data = data[12 + length + 4 :]


def test_tensorboard_has_scalars_config_and_texts_and_hides_repeated_steps(tmp_path):
    write(tmp_path, 0, [1, 2, 3])
    writer = writer_of(tmp_path, resume_step=2)
    writer.write(3, "train", {"loss": 1 / 3})
    writer.write_text(7, "sample", SAMPLE)
    events = [list(events_of(path)) for path in event_files(tmp_path)]  # before they are closed
    values = [[(event.step, value) for event in file for value in event.summary.value] for file in events]
    scalars = [[(step, v.tag, v.simple_value) for step, v in file if not v.HasField("tensor")] for file in values]
    assert scalars[0][:2] == [(1, "train/loss", 1.0), (1, "train/tokens", 1.0)]
    assert (2, "eval/loss", 1.0) in scalars[0] and scalars[1] == [(3, "train/loss", pytest.approx(1 / 3))]
    assert [event.step for event in events[1] if event.HasField("session_log")] == [3]
    texts = {v.tag: v.tensor.string_val[0].decode() for _, v in values[1] if v.HasField("tensor")}
    assert texts["sample/text_summary"] == "    prompt | a <b> & c\n    \n    model  | # d"
    assert json.loads(texts["config/text_summary"])["model"] == {"d_model": 32}
    writer.close()


class Broken:
    """A tracker whose methods fail or hang as a test chooses."""

    address = "nowhere"
    written: ClassVar[list] = []

    def __init__(self, run):
        self.how = run.config["how"]
        self.written.clear()
        if self.how == "start":
            raise RuntimeError("no network\nretry later")

    def scalars(self, step, values):
        if step == 2 and self.how == "write":
            raise OSError(28, "No space left on device", "elsewhere/file")
        self.written.append(step)

    def text(self, step, name, text):
        self.written.append(name)

    def close(self, failed):
        if self.how == "close":
            raise TimeoutError("not uploaded")
        self.written.append("closed")


class PanicException(BaseException):
    """As those of Rust libraries, no Exception."""


@pytest.mark.parametrize("failure", [PanicException("index out of bounds"), SystemExit(3)], ids=lambda one: repr(one))
def test_a_tracker_that_panics_or_ends_the_program_does_not_end_the_run(tmp_path, monkeypatch, failure):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    monkeypatch.setattr(Broken, "scalars", Mock(side_effect=failure))
    warnings = []
    writer = writer_of(tmp_path, ["broken"], warn=warnings.append, how="")
    writer.write(1, "train", {"loss": 1.0})
    writer.write(2, "train", {"loss": 2.0})
    writer.close()
    assert len(read_metrics(tmp_path)) == 2 and len(warnings) == 1
    assert f"receives nothing more: {type(failure).__name__}: {failure}; " in warnings[0]


@pytest.mark.parametrize("stop", STOPS)
def test_a_tracker_does_not_keep_a_program_from_ending(tmp_path, monkeypatch, stop):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    monkeypatch.setattr(Broken, "scalars", Mock(side_effect=stop))
    with pytest.raises(stop):
        writer_of(tmp_path, ["broken"], how="").write(1, "train", {"loss": 1.0})


@pytest.mark.parametrize(
    ("how", "written", "warning"),
    [
        ("write", [1], "OSError: [Errno 28] No space left on device: "),
        ("close", [1, 2, 3, "sample"], "TimeoutError: not uploaded"),
    ],
)
def test_a_tracker_that_fails_is_reported_once_and_the_others_go_on(tmp_path, monkeypatch, how, written, warning):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    warnings = []
    writer = writer_of(tmp_path, ["broken", "tensorboard"], warn=warnings.append, how=how)
    for step in (1, 2, 3):
        writer.write(step, "train", {"loss": float(step)})
    writer.write_text(3, "sample", "text")
    writer.close()
    assert Broken.written == written
    [line] = warnings
    assert line.startswith(f"the tracker broken failed, and receives nothing more: {warning}")
    assert line.endswith("; metrics.jsonl is complete") and len(read_metrics(tmp_path)) == 3
    [file] = event_files(tmp_path)
    assert [event.step for event in events_of(file) for value in event.summary.value][1:] == [1, 2, 3, 3]


def test_a_tracker_that_cannot_start_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    message = r"^train\.trackers has 'broken', which cannot start: RuntimeError: no network retry later: remove it from"
    with pytest.raises(ConfigError, match=message):
        writer_of(tmp_path, ["broken"], how="start")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_a_full_disk_is_one_line_that_names_the_workdir(tmp_path):
    writer = writer_of(tmp_path, ())
    writer.write(1, "train", {"loss": 1.0})
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._lines.fileno())
    os.close(full)
    for _ in range(2):
        message = r"^--workdir=.* cannot be written: No space left on device: .*metrics.jsonl\Z"
        with pytest.raises(ConfigError, match=message):
            writer.write(2, "train", {"loss": 1.0})
    writer.close(failed=True)


def run_program(program, *arguments, **environment):
    """The output, both streams, of a Python program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def write_and_continue(workdir, tracker):
    """A run of steps 1 to 3 with a sample, then again from the checkpoint of step 2 to step 4."""
    writer = writer_of(workdir, [tracker])
    for step in (1, 2, 3):
        writer.write(step, "train", {"loss": step / 4, "flops": 10**25})
        writer.write(step, "eval", {"loss": float("nan"), "loss/r": 0.5})
    writer.write_text(3, "sample", SAMPLE)
    writer.close()
    again = writer_of(workdir, [tracker], resume_step=2)
    for step in (3, 4):
        again.write(step, "train", {"loss": step / 4, "flops": 10**25})
    again.close()


def train_losses(rows):
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


def test_wandb_receives_scalars_config_and_sample_and_a_restart_continues_the_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    runs = [Mock(offline=False), Mock(offline=False)]
    monkeypatch.setattr(wandb, "init", Mock(side_effect=runs))
    monkeypatch.setattr(wandb, "Html", str)
    write_and_continue(tmp_path, "wandb")
    first, second = ([call.args[0] for call in run.log.call_args_list] for run in runs)
    assert train_losses(first) == [(1, 0.25), (2, 0.5), (3, 0.75)] and first[0]["train/flops"] == 1e25
    assert first[1] == {"step": 1, "eval/loss/r": 0.5}
    assert first[-1] == {"step": 3, "sample": "<pre>prompt | a &lt;b&gt; &amp; c\n\nmodel  | # d</pre>"}
    assert train_losses(second) == [(3, 0.75), (4, 1.0)], "step 3 again, with the same value"
    started = [call.kwargs for call in wandb.init.call_args_list]
    assert {run["id"] for run in started} == {stable_run_id(str(tmp_path), resumes=True)}
    assert started[0]["project"] == "trials" and started[0]["config"]["model"] == {"d_model": 32}
    for run in runs:
        run.finish.assert_called_once_with(exit_code=0)


@pytest.mark.slow  # imports of many seconds
def test_trackio_has_scalars_config_and_sample_and_a_restart_continues_the_run(tmp_path):
    pytest.importorskip("trackio")
    # trackio reads its folder's name when it is imported: a process of its own, for a database of its own.
    program = (
        "import pathlib, sys; from tests.workdir.test_metrics import write_and_continue as write; "
        "write(pathlib.Path(sys.argv[1]), 'trackio')"
    )
    run_program(program, str(tmp_path / "run"), TRACKIO_DIR=str(tmp_path / "files"))
    database = sqlite3.connect(tmp_path / "files" / "trials.db")
    rows = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
    losses = train_losses([{"step": step} | json.loads(metrics) for _, _, step, metrics in rows])
    assert losses == [(1, 0.25), (2, 0.5), (3, 0.75), (3, 0.75), (4, 1.0)], "step 3 again, with the same value"
    assert len({(id, name) for id, name, _, _ in rows}) == 1, "one run, not two of one name"
    [sample] = [text for *_, metrics in rows if (text := json.loads(metrics).get("sample"))]
    assert sample["_value"] == "    prompt | a <b> & c\n    \n    model  | # d"
    [config] = database.execute("select config from configs").fetchone()
    assert json.loads(config)["model"] == {"d_model": 32}


def test_a_run_from_step_0_is_a_new_run_in_its_trackers(tmp_path):
    first = stable_run_id(str(tmp_path), resumes=False)
    assert stable_run_id(str(tmp_path), resumes=True) == first != stable_run_id(str(tmp_path), resumes=False)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused_with_its_extra(tracker, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = rf"train\.trackers has '{tracker}', which is not installed: pip install -e '\.\[{tracker}\]'"
    with pytest.raises(ConfigError, match=message):
        check_trackers(["tensorboard", tracker])
