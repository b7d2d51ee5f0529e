"""examples/colab.ipynb, executed headless on a CPU with a small model and few steps."""

import os

import pytest

from tests.train.subprocesses import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("transformers")

SMALL = (
    "--config.model.d_model=32 --config.model.d_ff=32 --config.model.num_layers=1 --config.train.steps=4 "
    "--config.optimizer.warmup_steps=1 --config.train.batch_size=2 --config.train.eval_windows=8 "
    "--config.train.log_every=2"
)


def tagged(notebook, tag):
    [cell] = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]
    return cell


def texts_of(notebook):
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.slow
def test_the_notebook_runs_from_the_first_cell_to_the_last(tmp_path, monkeypatch):
    for path in ROOT.iterdir():  # a clone whose runs and pictures are written elsewhere
        if path.suffix in ("", ".py") and path.name not in (".git", "runs", "build"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    notebook = nbformat.read(ROOT / "examples" / "colab.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    parameters = tagged(notebook, "parameters")
    parameters.source += f'\nSIZES["cpu"] = "{SMALL}"\nSIZES["gpu"] = SIZES["tpu"] = SIZES["cpu"]\n'
    notebook.cells.remove(tagged(notebook, "install"))
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": os.fspath(tmp_path)}})
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        pytest.fail(f"{texts_of(notebook)}\n{error}")
    printed = texts_of(notebook)
    assert "done: 4 steps" in printed and "error:" not in printed and "\x1b[" not in printed
    pictures = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if "data" in o]
    assert sum("image/svg+xml" in output.data for output in pictures) == 2
    assert notebook.cells[-2].outputs[-1].text.strip(), "transformers generated nothing"
