"""Runs whose workdir and token store are in a bucket, on an object store of this machine."""

import jax
import numpy as np
import pytest

import cloze
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from files import paths
from files.atomic import write_bytes
from run.restore import load_experiment, load_params
from tests.small_fields import small_config
from tests.train.subprocesses import free_port, start_main
from train.init_from import open_origin
from train.loop import train_and_evaluate
from workdir.workdir import Workdir

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(buckets, tmp_path) -> str:
    return f"s3://test-bucket/{tmp_path.name}"


def experiment_of(corpus, **changes):
    fields = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    fields |= {"train__steps": 3, "train__checkpoint_every": 1, "train__keep_checkpoints": 3}
    return make_experiment(small_config("ul2", "encoder_decoder", **(fields | changes)))


SAME = ("step", "split", "loss", "learning_rate", "grad_norm", "heldout_digest")


def metrics_of(workdir):
    return [{name: line.get(name) for name in SAME} for line in Workdir(workdir).metrics()]


def test_a_run_in_a_bucket_equals_a_local_one_and_continues(bucket, corpus, tmp_path, monkeypatch, capsys):
    """Three steps, a checkpoint that is damaged, a continuation, the readers of the run, and lost checkpoints."""
    monkeypatch.chdir(tmp_path)
    local, experiment = str(tmp_path / "local"), experiment_of(corpus)
    train_and_evaluate(experiment, local)
    train_and_evaluate(experiment, bucket)
    found = {"checkpoints", "config.json", "metrics.jsonl", "tensorboard", "first_checkpoint.json"}
    assert set(paths.list_names(bucket)) == found
    assert metrics_of(bucket) == metrics_of(local)

    write_bytes(f"{bucket}/checkpoints/3/record/record.json", b"damaged")
    capsys.readouterr()
    train_and_evaluate(experiment, bucket)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{bucket}/checkpoints/3 is damaged" in printed and "continuing from step 2" in printed
    assert "damaged-3" in paths.list_names(f"{bucket}/checkpoints")
    assert metrics_of(bucket) == metrics_of(local)

    params, step = load_params(load_experiment(bucket), bucket)
    expected, _ = load_params(load_experiment(local), local)
    assert step == 3
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert cloze.load(bucket).step == 3 and open_origin(bucket).where == f"train.init_from={bucket}"
    assert len(paths.list_names(f"{bucket}/tensorboard")) == 2
    assert [path.name for path in tmp_path.iterdir() if ":" in path.name] == []

    with pytest.raises(ConfigError, match=r"train\.batch_size: 8 -> 4"):
        train_and_evaluate(experiment_of(corpus, train__batch_size=4), bucket)
    paths.remove_folder(f"{bucket}/checkpoints")
    with pytest.raises(ConfigError, match=f"{bucket}/checkpoints has no checkpoint any more"):
        train_and_evaluate(experiment, bucket)


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("s3://no-such-bucket/run", "there is no bucket"),
        ("gs:/test-bucket/run", "names no bucket: write gs://BUCKET/FOLDER"),
        ("hdfs://host/run", "has the scheme hdfs"),
    ],
)
def test_a_wrong_address_is_one_line_before_the_corpus_is_read(
    buckets, corpus, tmp_path, monkeypatch, workdir, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("train.loop.make_run", pytest.fail)
    with pytest.raises(ConfigError, match=f"--workdir={workdir}.*{message}"):
        train_and_evaluate(experiment_of(corpus), workdir)
    with pytest.raises(ConfigError, match=f"--workdir={workdir}"):
        load_experiment(workdir)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_cannot_write_to_s3(bucket, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=f"--workdir={bucket}: 2 processes cannot write checkpoints to s3://"):
        Workdir(bucket).create()


def test_two_processes_whose_corpus_is_in_a_bucket_train_and_one_continues(bucket, corpus, tmp_path, monkeypatch):
    """Each has a home folder of its own; then this process continues their run from a checkpoint before a damage."""
    for path in sorted((corpus / "text").iterdir())[:10]:
        write_bytes(f"{bucket}/text/{path.name}", path.read_bytes())
    fields = {"path": f"{bucket}/text", "cache_dir": f"{bucket}/cache"}
    arguments = [*(f"--config.data.{name}={value}" for name, value in fields.items()), f"--workdir={tmp_path}/run"]
    arguments += ["--config.train.checkpoint_every=2", "--config.train.steps=4"]
    arguments += [f"--coordinator_address=localhost:{free_port()}", "--num_processes=2"]
    started = []
    for index in range(2):
        (tmp_path / f"home{index}").mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / f"home{index}"))
        started.append(start_main(*arguments, f"--process_id={index}", devices=2))
    try:
        printed = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    assert "4 x cpu (cpu, 2 processes)" in printed[0][0]
    workdir = Workdir(f"{tmp_path}/run")
    assert workdir.steps() == [2, 4] and not paths.exists(f"{workdir}/run.lock")
    lines = metrics_of(workdir)
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 2, 3, 4]

    # The last checkpoint is damaged: the run continues from the one before it.
    paths.remove(f"{workdir}/checkpoints/4/state/step/0")
    experiment = experiment_of(
        corpus, train__steps=4, train__checkpoint_every=2, train__keep_checkpoints=1,
        **{f"data__{name}": value for name, value in fields.items()},
    )  # fmt: skip
    train_and_evaluate(experiment, workdir)
    for line, before in zip(metrics_of(workdir), lines, strict=True):
        assert line["step"] == before["step"] and line["loss"] == pytest.approx(before["loss"], rel=1e-5)
