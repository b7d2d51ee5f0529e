"""The runs in tests/fixtures, which earlier versions have written, are still read and continued."""

import io
import json
import pathlib
import shutil

import pytest
from rich.console import Console

import cloze
from experiment.experiment import make_experiment
from run.compiled_run import make_run
from run.evaluation import evaluate
from run.restore import load_experiment, load_params, reading_mesh
from tests.make_checkpoint_fixture import ROOT, RUN, STEPS, digests, fixture_experiment
from train.init_from import start_from
from train.loop import train_and_evaluate
from workdir.metrics_file import read_metrics
from workdir.older_configs import CONFIG_VERSION

RELEASED = RUN.parent / "run_v1"  # of the last version whose config.json had no version


@pytest.fixture(params=[RUN, RELEASED], ids=lambda run: run.name)
def fixture(request) -> pathlib.Path:
    return request.param


@pytest.fixture
def workdir(fixture, tmp_path, monkeypatch) -> pathlib.Path:
    """A copy of the run, which may be written."""
    monkeypatch.chdir(ROOT)  # data.path is relative
    return pathlib.Path(shutil.copytree(fixture, tmp_path / "run"))


def test_it_says_which_versions_wrote_it(fixture):
    written_by = json.loads((fixture / "written_by.json").read_text())
    assert {"python", "orbax-checkpoint", "jax", "flax", "optax", "numpy"} <= written_by.keys()
    assert sum(path.stat().st_size for path in fixture.rglob("*") if path.is_file()) < 100_000


def test_the_released_run_lacks_what_later_versions_added():
    config = json.loads((RELEASED / "config.json").read_text())
    assert "version" not in config and "cycles" not in config["optimizer"]
    assert not (RELEASED / "first_checkpoint.json").exists()


def test_its_parameters_are_restored_bit_for_bit_and_have_its_held_out_loss(workdir, tmp_path):
    experiment = load_experiment(str(workdir))
    params, step = load_params(experiment, str(workdir), mesh=reading_mesh(experiment, batch_size=8))
    assert step == STEPS
    assert digests(params) == json.loads((workdir / "written_by.json").read_text())["params"]
    run = make_run(fixture_experiment(STEPS, str(tmp_path / "cache")), show_progress=False)
    [expected] = read_metrics(workdir, "eval")
    assert evaluate(run, params)["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_its_training_continues(workdir, tmp_path):
    before = read_metrics(workdir)
    experiment = fixture_experiment(2 * STEPS, str(tmp_path / "cache"))
    console = Console(file=io.StringIO(), width=200)
    assert train_and_evaluate(experiment, str(workdir), console=console)
    assert f"continuing from step {STEPS}" in console.file.getvalue()
    lines = read_metrics(workdir)
    assert lines[: len(before)] == before
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 2, 3, 4]
    assert lines[-1]["loss"] < before[-1]["loss"]  # as it learns, which a state of other values would not
    assert lines[-1]["examples"] == 2 * before[-1]["examples"]
    assert json.loads((workdir / "config.json").read_text())["version"] == CONFIG_VERSION


def test_a_run_starts_from_it_and_python_opens_it(workdir, tmp_path):
    config = fixture_experiment(STEPS, str(tmp_path / "cache")).config
    train = config["train"] | {"init_from": str(workdir), "init_from_overlap": "allow"}
    run = make_run(make_experiment(config | {"train": train}), show_progress=False)
    started, _ = start_from(run, run.init_state().params, str(workdir))
    model = cloze.load(workdir)
    assert digests(started) == digests(model.params) == json.loads((workdir / "written_by.json").read_text())["params"]
