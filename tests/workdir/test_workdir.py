"""A run's folder: one process at a time, its config, and no silent start over a run that has lost its checkpoints."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from contract.errors import ConfigError
from files import paths
from tests.conftest import TRAINED
from tests.small_fields import small_config
from tests.train.subprocesses import ROOT
from workdir.workdir import FIRST_CHECKPOINT_MARKER, LOCK_FILE, Workdir

HOLD = """
import sys, time
from workdir.workdir import Workdir
with Workdir(sys.argv[1]).lock() as id:
    print(id, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds the lock of `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    process.id = process.stdout.readline().strip()
    yield process
    process.kill()
    process.communicate()


def test_a_tilde_is_the_home_directory_and_not_a_folder_of_this_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Workdir("~/runs/clm").create()  # as in --workdir=~/runs/clm, where shells leave the tilde
    assert (tmp_path / "home" / "runs" / "clm").is_dir() and os.listdir(tmp_path) == ["home"]


def test_a_second_process_is_refused_and_a_killed_one_frees_the_lock(tmp_path, holder):
    workdir = Workdir(tmp_path)
    message = (
        rf"^--workdir={tmp_path} is in use by process {holder.pid} on \S+, which started at 20.*: wait for its end"
    )
    with pytest.raises(ConfigError, match=message) as error, workdir.lock():
        pass
    assert "\n" not in str(error.value)
    assert workdir.sees_lock(holder.id, seconds=0) and not workdir.sees_lock("another", seconds=0)
    holder.send_signal(signal.SIGKILL)  # and not waited for
    with workdir.lock() as id:
        assert id in (tmp_path / LOCK_FILE).read_text()


def test_the_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "text").write_text("of another program")
    (tmp_path / LOCK_FILE).symlink_to("text")
    with pytest.raises(OSError, match=LOCK_FILE), Workdir(tmp_path).lock():
        pass
    assert (tmp_path / "text").read_text() == "of another program"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])  # of NFS without a lock server, and of SMB
def test_a_disk_without_locks_is_named(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError) as error, Workdir(tmp_path).lock():
        pass
    message = f"{tmp_path / LOCK_FILE}: {os.strerror(number)}: choose a folder on another disk"
    assert paths.describe_os_error(error.value) == message


def test_the_lock_of_a_bucket_is_an_object_that_says_how_to_remove_it(bucket):
    workdir, path = Workdir(bucket), f"{bucket}/run.lock"
    with workdir.lock():
        message = rf"is in use by process {os.getpid()} on .*: if it was killed, delete {path}; otherwise wait for its"
        with pytest.raises(ConfigError, match=message), workdir.lock():
            pass
        assert paths.exists(path)
    assert not paths.exists(path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="/file/run"):
        Workdir(tmp_path / "file" / "run").create()
    with pytest.raises(ConfigError, match="--workdir=hdfs://host/run has the scheme hdfs"):
        Workdir("hdfs://host/run").create()
    Workdir(tmp_path / "a" / "b").create()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_without_a_run_has_nothing(tmp_path):
    workdir = Workdir(Workdir(tmp_path / "nowhere", named_by="train.init_from"), named_by="train.init_from")
    assert not workdir.exists and not workdir.has_config and not workdir.has_metrics and not workdir.is_imported
    assert workdir.steps() == [] and workdir.imported() == {} and not workdir.is_complete
    with pytest.raises(ConfigError, match=r"^train.init_from=.*/nowhere is not the folder of a run"):
        workdir.config()
    assert not (tmp_path / "nowhere").exists() and str(workdir) == os.fspath(workdir) == str(tmp_path / "nowhere")


@pytest.mark.parametrize("architecture", TRAINED)
def test_a_finished_run(architecture, trained_run):
    workdir = Workdir(trained_run(architecture))
    assert workdir.is_complete and workdir.steps() == [2, 4] and workdir.counters(4)["step"] == 4
    assert [line["step"] for line in workdir.metrics("eval")] == [2, 4]
    assert sorted(os.listdir(workdir)) == [
        "checkpoints", "config.json", FIRST_CHECKPOINT_MARKER, "metrics.jsonl", LOCK_FILE,
    ]  # fmt: skip


def test_a_field_that_a_config_lacks_has_its_default_and_a_note_says_so(trained_run, tmp_path, capsys):
    config = Workdir(trained_run("decoder_only")).config()
    del config["model"]["norm_epsilon"]
    workdir = Workdir(tmp_path)
    workdir.write_config(config)
    assert workdir.config()["model"]["norm_epsilon"] == 1e-6
    assert capsys.readouterr().err == f"note: {tmp_path}/config.json lacks model.norm_epsilon: it is 1e-06\n"


@pytest.mark.parametrize("in_mixture", [False, True])
def test_a_field_that_an_objective_has_gained_since_has_the_default_of_its_class(in_mixture, tmp_path, capsys):
    config = small_config("masked_diffusion", "encoder_only")
    if in_mixture:
        row = config["objective"] | {"weight": 1.0, "mode": "", "corpora": ()}
        config["objective"] = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": {"a": row}}
    expected = json.loads(json.dumps(config))
    older = json.loads(json.dumps(config))
    del (older["objective"]["denoisers"]["a"] if in_mixture else older["objective"])["random_length_share"]
    workdir = Workdir(tmp_path)
    workdir.write_config(older)
    assert workdir.config() == expected
    field = "objective.denoisers.a.random_length_share" if in_mixture else "objective.random_length_share"
    assert capsys.readouterr().err == f"note: {tmp_path}/config.json lacks {field}: it is 0.0\n"


def test_a_run_without_checkpoints_is_refused_if_it_had_one(trained_run, tmp_path):
    run = shutil.copytree(trained_run("decoder_only"), tmp_path / "run")
    workdir = Workdir(run)
    workdir.check_not_lost()
    shutil.rmtree(run / "checkpoints")
    message = r"contains a run, but .*/checkpoints has no checkpoint any more: put it back"
    with pytest.raises(ConfigError, match=message) as error:
        workdir.check_not_lost()
    assert "\n" not in str(error.value)
    (run / FIRST_CHECKPOINT_MARKER).unlink()  # as of a run that was killed before its first checkpoint
    workdir.check_not_lost()
