"""Runs whose workdir, texts and token store are in a bucket: gs:// and s3:// on an object store of this machine."""

import json
import time

import jax
import numpy as np
import pytest

import cloze
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from files import buckets, storage
from run.restore import load_experiment, load_params
from tests.bucket_server import BucketServer
from tests.table import small_config
from tests.train.subprocesses import free_port, run_main, start_main
from train.init_from import open_origin
from train.loop import train_and_evaluate
from workdir import workdir_lock
from workdir.bucket_lock import BucketLock
from workdir.lock_file import read_holder
from workdir.metrics_file import read_metrics


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = BucketServer("test-bucket")
    for name, value in (server.environment | {"HOME": str(tmp_path / "home")}).items():
        monkeypatch.setenv(name, value)
    buckets._open.cache_clear()
    with server.running():
        yield server
    buckets._open.cache_clear()


def fields_of(corpus, **changes):
    fields = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config("ul2", "encoder_decoder", **(fields | changes))


SAME = ("step", "split", "loss", "learning_rate", "grad_norm", "heldout_digest")


def metrics_of(workdir):
    return [{name: line.get(name) for name in SAME} for line in read_metrics(workdir)]


def files_of(server):
    return {key.removeprefix("run/").partition("/")[0] for key in server.objects["test-bucket"]}


def test_a_run_in_a_bucket_equals_a_local_one_and_continues(server, corpus, tmp_path, monkeypatch, capsys):
    """Three steps, a checkpoint that is damaged, a continuation, and the readers of the run."""
    monkeypatch.chdir(tmp_path)
    workdir, local = "s3://test-bucket/run", str(tmp_path / "local")
    experiment = make_experiment(
        fields_of(corpus, train__steps=3, train__checkpoint_every=1, train__keep_checkpoints=3)
    )
    train_and_evaluate(experiment, local)
    train_and_evaluate(experiment, workdir)
    found = {"checkpoints", "config.json", "metrics.jsonl", "tensorboard", "first_checkpoint.json"}
    assert files_of(server) == found
    assert metrics_of(workdir) == metrics_of(local)

    [key] = [key for key in server.objects["test-bucket"] if key.endswith("checkpoints/3/state/manifest.ocdbt")]
    server.put("test-bucket", key, b"damaged")
    capsys.readouterr()
    train_and_evaluate(experiment, workdir)
    printed = " ".join(capsys.readouterr().out.split())
    assert "s3://test-bucket/run/checkpoints/3 is damaged" in printed and "continuing from step 2" in printed
    assert "damaged-3" in storage.list_names(f"{workdir}/checkpoints")
    assert metrics_of(workdir) == metrics_of(local)

    params, step = load_params(load_experiment(workdir), workdir)
    expected, _ = load_params(load_experiment(local), local)
    assert step == 3
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert cloze.load(workdir).step == 3
    assert open_origin(workdir).where == f"train.init_from={workdir}"
    events = [key for key in server.objects["test-bucket"] if "tensorboard/events" in key]
    assert len(events) == 2 and all(len(server.objects["test-bucket"][key][0]) > 1000 for key in events)
    assert [path.name for path in tmp_path.iterdir() if ":" in path.name] == []


def test_lost_checkpoints_and_another_config_are_refused(server, corpus):
    workdir = "gs://test-bucket/run"
    train_and_evaluate(make_experiment(fields_of(corpus, train__checkpoint_every=1)), workdir)
    other = make_experiment(fields_of(corpus, train__checkpoint_every=1, train__batch_size=4))
    with pytest.raises(ConfigError, match=r"train\.batch_size: 8 -> 4"):
        train_and_evaluate(other, workdir)
    storage.remove_folder(f"{workdir}/checkpoints")
    with pytest.raises(ConfigError, match="gs://test-bucket/run/checkpoints does not exist"):
        train_and_evaluate(make_experiment(fields_of(corpus, train__checkpoint_every=1)), workdir)
    # The remains of a save that was interrupted before the first checkpoint.
    step = json.loads(storage.read_bytes(f"{workdir}/first_checkpoint.json"))["step"]
    storage.write_bytes(f"{workdir}/checkpoints/{step}/state/d/1", b"incomplete")
    train_and_evaluate(make_experiment(fields_of(corpus, train__checkpoint_every=1)), workdir)
    assert not storage.exists(f"{workdir}/checkpoints/{step}/state/d/1")


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("gs://no-such-bucket/run", "there is no such bucket"),
        ("s3://no-such-bucket/run", "there is no such bucket"),
        ("gs:/test-bucket/run", "names no bucket: write gs://BUCKET/FOLDER"),
        ("hdfs://host/run", "has the scheme hdfs"),
    ],
)
def test_a_wrong_address_is_one_line_before_the_corpus_is_read(server, corpus, tmp_path, monkeypatch, workdir, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("train.loop.make_run", pytest.fail)
    with pytest.raises(ConfigError, match=f"--workdir={workdir}.*{message}"):
        train_and_evaluate(make_experiment(fields_of(corpus)), workdir)
    with pytest.raises(ConfigError, match=f"--workdir={workdir}"):
        load_experiment(workdir)
    assert list(tmp_path.iterdir()) == [] and server.objects["test-bucket"] == {}


@pytest.fixture
def quick(monkeypatch):
    """Times of a lock in tenths of a second."""
    monkeypatch.setattr(workdir_lock, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(workdir_lock, "DEAD_SECONDS", 1.0)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_one_run_at_a_time_has_the_lock(server, scheme, quick):
    workdir = f"{scheme}://test-bucket/run"
    with BucketLock(workdir) as first:
        first.check()
        time.sleep(0.5)
        notes = []
        with pytest.raises(ConfigError, match="is in use by process"), BucketLock(workdir, note=notes.append):
            pass
        assert "waiting up to 1 s" in notes[0]
        first.check()
        assert read_holder(f"{workdir}/run.lock").id == first.id
    assert server.objects["test-bucket"] == {}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_the_lock_of_a_dead_process_is_taken_and_noticed_by_a_suspended_one(server, scheme, quick):
    workdir = f"{scheme}://test-bucket/run"
    with BucketLock(workdir) as suspended:
        suspended._ended.set()  # as if the process did not run
        suspended._renewing.join()
        with BucketLock(workdir, note=lambda line: None) as second:
            second.check()
            with pytest.raises(ConfigError, match=r"is in use by .* has lost its lock"):
                suspended.check()
        with pytest.raises(ConfigError, match="is gone"):
            suspended.check()


def test_of_two_processes_that_take_a_free_lock_one_gets_it(server, quick, monkeypatch):
    """Both have read that there is no lock."""
    workdir, read = "gs://test-bucket/run", buckets.read_version
    lock, faster = BucketLock(workdir), BucketLock(workdir)

    def read_and_lose(path, **options):
        found = read(path, **options)
        monkeypatch.setattr(buckets, "read_version", read)
        faster.__enter__()
        return found

    monkeypatch.setattr(buckets, "read_version", read_and_lose)
    with pytest.raises(ConfigError, match="is in use by"):
        lock.__enter__()
    faster.check()
    faster.__exit__()


def test_two_processes_that_share_a_bucket_alone_train_and_continue(server, corpus, tmp_path, monkeypatch):
    """Each has a home folder of its own, and no common folder; then one process continues their run."""
    for path in sorted((corpus / "text").iterdir())[:10]:
        server.put("test-bucket", f"text/{path.name}", path.read_bytes())
    arguments = [
        "--config.data.path=gs://test-bucket/text",
        "--config.data.cache_dir=gs://test-bucket/cache",
        "--workdir=gs://test-bucket/run",
        "--config.train.checkpoint_every=2",
        "--config.train.steps=4",
    ]
    address = f"--coordinator_address=localhost:{free_port()}"
    started = []
    for index in range(2):
        home = tmp_path / f"home{index}"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        flags = [address, "--num_processes=2", f"--process_id={index}"]
        started.append(start_main(*arguments, *flags, devices=2))
    try:
        printed = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    assert "4 x cpu (cpu, 2 processes)" in printed[0][0]
    steps = {key.split("/")[2] for key in server.objects["test-bucket"] if key.startswith("run/checkpoints/")}
    assert steps >= {"4"} and "run/run.lock" not in server.objects["test-bucket"]
    assert [line["step"] for line in read_metrics("gs://test-bucket/run", "train")] == [1, 2, 3, 4]

    # The last save was interrupted: its checkpoint is none, and is deleted.
    del server.objects["test-bucket"]["run/checkpoints/4/commit_success.txt"]
    monkeypatch.setenv("HOME", str(tmp_path / "home2"))
    status, out, err = run_main(*arguments)
    assert status == 0, out + err
    assert "continuing from step 2" in out and "checksums verified" in err
    assert [line["step"] for line in read_metrics("gs://test-bucket/run", "train")] == [1, 2, 3, 4]
    assert storage.is_file("gs://test-bucket/run/checkpoints/4/commit_success.txt")
