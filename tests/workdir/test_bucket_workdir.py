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
    return make_experiment(small_config("clm", "decoder_only", **(fields | changes)))


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


def test_several_processes_cannot_write_to_s3(bucket, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=f"--workdir={bucket}: 2 processes cannot write checkpoints to s3://"):
        Workdir(bucket).create()
