"""A finished run, its token store, its export and other folders, to be named wrongly and to be damaged."""

import contextlib
import io
import json
import pathlib
import shutil
import sys

import pytest

from experiment.experiment import make_experiment
from huggingface import convert
from run.corpus import open_corpora
from run.restore import config_for_reading
from tests.huggingface.exported_runs import run_export
from tests.make_checkpoint_fixture import ROOT, RUN
from workdir.run_config import read_config


@pytest.fixture(scope="package")
def place(tmp_path_factory) -> pathlib.Path:
    """A folder with the folders run, cache, export, imported, empty and others, and the files text.txt and file.

    run is tests/fixtures/run, with paths in this folder.
    """
    folder, monkeypatch = tmp_path_factory.mktemp("place"), pytest.MonkeyPatch()
    monkeypatch.chdir(ROOT)
    (folder / "text.txt").write_text((ROOT / "tests" / "fixtures" / "text.txt").read_text())
    (folder / "file").write_text("a file\n")
    (folder / "empty").mkdir()
    (folder / "others").mkdir()
    (folder / "others" / "notes.txt").write_text("notes\n")
    shutil.copytree(RUN, folder / "run")
    config = json.loads((folder / "run" / "config.json").read_text())
    config["data"] |= {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache")}
    (folder / "run" / "config.json").write_text(json.dumps(config))
    with contextlib.redirect_stdout(io.StringIO()):
        # Not by load_experiment, which builds no store in a folder that a run's config names.
        open_corpora(make_experiment(config_for_reading(read_config(folder / "run"))), show_progress=False)
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
