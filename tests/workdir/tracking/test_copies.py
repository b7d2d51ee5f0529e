"""wandb and trackio without a network: what they have written, read back from their own files."""

import json
import os
import sqlite3
import struct
import subprocess
import sys

import pytest

from contract.errors import ConfigError
from tests.train.subprocesses import ROOT
from workdir.metrics import MetricsWriter, check_trackers

CONFIG = {"seed": 3, "model": {"d_model": 32}}
SAMPLE = "prompt | a <b> & c\n\nmodel  | # d"


def writer_of(workdir, tracker, resume_step=0):
    config = CONFIG | {"train": {"trackers": [tracker], "tracker_project": "trials"}}
    return MetricsWriter(workdir, config, resume_step=resume_step, warn=pytest.fail)


def write_two_interleaved_runs(folder, tracker):
    """Runs a and b of steps 1 to 3 with a sample, then a again from the checkpoint of step 2 to step 4."""
    writers = {name: writer_of(folder / name, tracker) for name in ("a", "b")}
    for step in (1, 2, 3):
        for name, writer in writers.items():
            writer.write(step, "train", {"loss": step / 4 if name == "a" else 7.0, "flops": 10**25})
            writer.write(step, "eval", {"loss": float("nan"), "loss/r": 0.5})
    for writer in writers.values():
        writer.write_text(3, "sample", SAMPLE)
        writer.close()
    again = writer_of(folder / "a", tracker, resume_step=2)
    for step in (3, 4):
        again.write(step, "train", {"loss": step / 4, "flops": 10**25})
    again.close()


def run_program(program, *arguments, **environment):
    """The output, both streams, of a Python program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        # Not the service of the wandb that these tests use in their own process.
        env={k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_id(workdir):
    return json.loads((workdir / "tracking.json").read_text())["run_id"]


def train_losses(rows):
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


@pytest.fixture(scope="module")
def wandb_folder(tmp_path_factory):
    wandb = pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        write_two_interleaved_runs(folder, "wandb")
        wandb.teardown()  # waits until its service has written the files
    return folder


def wandb_records(file):
    """The records of a .wandb file: 7 bytes, then LevelDB's log format of blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if place % 32768 > 32768 - 7:  # the rest of a block cannot have a header
            place += 32768 - place % 32768
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


def wandb_rows(records):
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def test_wandb_has_scalars_config_and_sample_and_a_restart_continues_the_run(wandb_folder):
    [first, second] = [
        list(wandb_records(file)) for file in sorted((wandb_folder / "a").glob("wandb/offline-run-*/run-*.wandb"))
    ]
    rows = wandb_rows(first)
    assert train_losses(rows) == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert rows[0]["train/flops"] == 1e25
    assert [{k: v for k, v in row.items() if k[0] != "_"} for row in rows[1:2]] == [{"step": 1, "eval/loss/r": 0.5}]
    assert train_losses(wandb_rows(second)) == [(3, 0.75), (4, 1.0)]  # step 3 again, with the same value
    [other] = (wandb_folder / "b").glob("wandb/offline-run-*/run-*.wandb")
    assert train_losses(wandb_rows(wandb_records(other))) == [(1, 7.0), (2, 7.0), (3, 7.0)]

    runs = [record.run for records in (first, second) for record in records if record.HasField("run")]
    assert {run.run_id for run in runs} == {run_id(wandb_folder / "a")} != {run_id(wandb_folder / "b")}
    assert {(run.project, run.display_name) for run in runs} == {("trials", f"a-{run_id(wandb_folder / 'a')}")}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["seed"] == 3 and config["model"] == {"d_model": 32}
    metrics = [record.metric for record in first if record.HasField("metric")]
    assert any(metric.glob_name == "*" and metric.step_metric == "step" for metric in metrics)

    [row] = [row for row in rows if "sample/path" in row]
    [page] = (wandb_folder / "a").glob(f"wandb/offline-run-*/files/{row['sample/path']}")
    assert "<pre>prompt | a &lt;b&gt; &amp; c\n\nmodel  | # d</pre>" in page.read_text()


def test_trackio_has_scalars_config_and_sample_and_a_restart_continues_the_run(tmp_path):
    pytest.importorskip("trackio")
    # trackio reads its folder's name when it is imported: a process of its own, for a database of its own.
    program = (
        "import pathlib, sys; from tests.workdir.tracking.test_copies import write_two_interleaved_runs as write; "
        "write(pathlib.Path(sys.argv[1]), 'trackio')"
    )
    done = run_program(program, str(tmp_path), TRACKIO_DIR=str(tmp_path / "files"))
    assert "Warning" not in done
    database = sqlite3.connect(tmp_path / "files" / "trials.db")
    rows = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
    names = {name: f"{name}-{run_id(tmp_path / name)}" for name in "ab"}
    losses = {
        name: train_losses([{"step": step} | json.loads(metrics) for _, run, step, metrics in rows if run == full])
        for name, full in names.items()
    }
    assert losses == {
        "a": [(1, 0.25), (2, 0.5), (3, 0.75), (3, 0.75), (4, 1.0)],  # step 3 again, with the same value
        "b": [(1, 7.0), (2, 7.0), (3, 7.0)],
    }
    assert len({id for id, run, _, _ in rows if run == names["a"]}) == 1  # one run, not two of one name
    texts = [json.loads(metrics).get("sample") for _, run, step, metrics in rows if (run, step) == (names["a"], 3)]
    [sample] = [text for text in texts if text]
    assert sample["_value"] == "    prompt | a <b> & c\n    \n    model  | # d"
    configs = dict(database.execute("select run_name, config from configs"))
    assert json.loads(configs[names["a"]])["model"] == {"d_model": 32}


def test_a_run_from_step_0_is_a_new_run_in_its_trackers(tmp_path, monkeypatch):
    from workdir.tracking.tracker import stable_run_id

    first = stable_run_id(str(tmp_path), resumes=False)
    assert stable_run_id(str(tmp_path), resumes=True) == first
    assert stable_run_id(str(tmp_path), resumes=False) != first
    (tmp_path / "tracking.json").write_text('{"run_id": 3}')
    with pytest.raises(ConfigError, match=r"tracking\.json is damaged: run_id=3 must be a text: delete it"):
        stable_run_id(str(tmp_path), resumes=True)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused_with_its_extra(tracker, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = rf"train\.trackers has '{tracker}', which is not installed: pip install -e '\.\[{tracker}\]'"
    with pytest.raises(ConfigError, match=message):
        check_trackers(["tensorboard", tracker])


def test_wandb_without_a_key_is_refused_unless_it_is_offline(tmp_path):
    pytest.importorskip("wandb")
    program = (
        "import os\nfrom workdir.trackers import check_trackers\n"
        "for mode in ('online', 'offline'):\n"
        "    os.environ['WANDB_MODE'] = mode\n"
        "    import wandb; wandb.teardown()\n"
        "    try: check_trackers(['wandb'])\n"
        "    except Exception as error: print(mode, error)\n"
    )
    done = run_program(program, HOME=str(tmp_path), NETRC=str(tmp_path / "netrc"), WANDB_API_KEY="")
    assert "online train.trackers has 'wandb', which has no API key on this machine: run wandb login, or set" in done
    assert "offline train" not in done
