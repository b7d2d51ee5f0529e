"""A finished run, its token store, its export and other folders, to be named wrongly and to be damaged."""

import contextlib
import io
import pathlib
import shutil
import sys

import pytest
from rich.console import Console

from experiment.experiment import make_experiment
from huggingface import convert
from tests.huggingface.exported_runs import run_export
from tests.train.subprocesses import ROOT
from tests.train.tiny_experiments import paragraph_experiment
from train.loop import train_and_evaluate


@pytest.fixture(scope="package")
def place(tmp_path_factory) -> pathlib.Path:
    """A folder with the folders run, cache, export, imported, empty and others, and the files text.txt and file.

    run is a run of two steps on the paragraphs of text.txt, which reads what is in this folder.
    """
    folder, monkeypatch = tmp_path_factory.mktemp("place"), pytest.MonkeyPatch()
    monkeypatch.chdir(ROOT)
    (folder / "text.txt").write_text((ROOT / "tests" / "fixtures" / "text.txt").read_text())
    (folder / "file").write_text("a file\n")
    (folder / "empty").mkdir()
    (folder / "others").mkdir()
    (folder / "others" / "notes.txt").write_text("notes\n")
    config = paragraph_experiment(2, str(folder / "cache")).config
    config["data"] |= {"path": str(folder / "text.txt")}
    train_and_evaluate(make_experiment(config), folder / "run", console=Console(file=io.StringIO()))
    with contextlib.redirect_stdout(io.StringIO()):
        run_export(f"--workdir={folder / 'run'}", f"--out={folder / 'export'}")
        monkeypatch.setattr(sys, "argv", ["command", f"--from={folder / 'export'}", f"--workdir={folder / 'imported'}"])
        convert.main()
    monkeypatch.undo()
    return folder


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """The paths of configs in command lines are relative to the root of the project."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def own(place, tmp_path):
    """A copy of the fixture `place` to be damaged."""
    shutil.copytree(place, tmp_path / "place")
    config = tmp_path / "place" / "run" / "config.json"
    config.write_text(config.read_text().replace(str(place), str(tmp_path / "place")))
    return tmp_path / "place"
