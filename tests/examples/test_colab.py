"""examples/colab.ipynb, executed headless on a CPU with a small model and few steps; and what pip installs on Colab."""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("ipykernel")

from IPython.core.inputtransformer2 import TransformerManager

from tests.train.subprocesses import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = ROOT / "examples" / "colab.ipynb"
SMALL = (
    "--config.model.d_model=32 --config.model.d_ff=32 --config.model.num_layers=1 --config.train.steps=4 "
    "--config.optimizer.warmup_steps=1 --config.train.batch_size=2 --config.train.eval_windows=8 "
    "--config.train.log_every=2"
)
# What the commands of docs/dependencies.md replace of Colab's packages; all others stay at the version of its lists.
REPLACED = {"jax", "jaxlib", "flax", "orbax-checkpoint", "absl-py"}
# The plugins that it replaces too, by the list of Colab's packages: tests/examples/colab_*.txt.
PLUGINS = {"gpu": {"jax-cuda12-plugin", "jax-cuda12-pjrt"}, "tpu": {"libtpu"}}


def tagged(notebook, tag):
    [cell] = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]
    return cell


def texts_of(notebook):
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


def executed(notebook, folder):
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": os.fspath(folder)}}).execute()
    return texts_of(notebook)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone whose runs and pictures are written elsewhere."""
    for path in ROOT.iterdir():
        if path.suffix in ("", ".py") and path.name not in (".git", "runs", "build"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_the_notebook_runs_from_the_first_cell_to_the_last(clone):
    pytest.importorskip("transformers")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    parameters = tagged(notebook, "parameters")
    parameters.source += f'\nSIZES["cpu"] = "{SMALL}"\nSIZES["gpu"] = SIZES["tpu"] = SIZES["cpu"]\n'
    parameters.source += 'STUDY = "--seeds=2 --budget=10000 --config.optimizer.warmup_steps=1"\n'
    # Its command is resolved below, with the packages that Colab has.
    notebook.cells.remove(tagged(notebook, "install"))
    try:
        printed = executed(notebook, clone)
    except nbclient.exceptions.CellExecutionError as error:
        pytest.fail(f"{texts_of(notebook)}\n{error}")
    assert "done: 4 steps" in printed and "error:" not in printed and "\x1b[" not in printed
    assert "nats per scored token" in printed and "[X] 'def <extra_id_0>(self):' ->" in printed
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if "data" in output]
    assert sum("image/svg+xml" in data for data in shown) == 3  # a sentence, losses, and a measure of the study
    assert any("quick" in data.get("text/html", "") for data in shown), "cloze shows the sentence"
    assert any("4 of 4 runs are complete" in data.get("text/markdown", "") for data in shown), "the study's report"
    assert tagged(notebook, "transformers").outputs[-1].text.strip(), "transformers generated nothing"


def run_here(*cells):
    """Executes cells in this process as IPython does, without the seconds in which a kernel starts."""
    namespace = {}
    for cell in cells:
        exec(TransformerManager().transform_cell(cell.source), namespace)


def test_a_notebook_without_an_address_stops_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.raises(SystemExit, match=r"^REPOSITORY is empty.*$") as error:
        run_here(tagged(notebook, "parameters"), tagged(notebook, "setup"))
    assert "\n" not in str(error.value)


def test_the_setup_cell_can_run_again(tmp_path):
    """In the same folder after a restart of the runtime, and twice in one."""
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "setup.py").touch()
    git = ["git", "-C", tmp_path / "origin", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "setup.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    content, setup = tmp_path / "content", tagged(nbformat.read(NOTEBOOK, as_version=4), "setup").source
    content.mkdir()
    (tmp_path / "setup_cell.ipy").write_text(f"REPOSITORY = {os.fspath(tmp_path / 'origin')!r}\n{setup}\n{setup}\n")
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", "--HistoryManager.enabled=False"]
    for _ in range(2):
        subprocess.run([*command, tmp_path / "setup_cell.ipy"], cwd=content, check=True, timeout=120)
    assert sorted(path.name for path in content.rglob("*") if ".git" not in path.parts) == ["cloze-clone", "setup.py"]


def test_the_notebook_stops_if_pip_left_jax_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    machine = nbformat.v4.new_code_cell('import sys\nplatform = "gpu"')
    message = "^JAX runs on the cpu of a machine with a gpu: restart the runtime and run all cells$"
    with pytest.raises(AssertionError, match=message):
        run_here(machine, tagged(notebook, "check"))


def commands():
    """Returns each runtime's requirement of JAX, from docs/dependencies.md."""
    page = (ROOT / "docs" / "dependencies.md").read_text()
    found = re.findall(r'^    pip install -e \. "(jax\S*)" +# Colab, (\w+)$', page, re.MULTILINE)
    return {runtime: requirement for requirement, runtime in found}


def test_the_notebook_installs_what_the_page_says():
    install = tagged(nbformat.read(NOTEBOOK, as_version=4), "install").source
    assert f"JAX = {json.dumps(commands())}" in install and set(commands()) == {"cpu", *PLUGINS}
    assert commands()["cpu"] == commands()["gpu"].replace("[cuda12]", "")


def pins(text):
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", PLUGINS)
def test_pip_changes_jax_alone_of_what_colab_has(runtime, tmp_path):
    uv = pytest.importorskip("uv", reason="the resolver is not installed: pip install uv")
    try:
        urllib.request.urlopen("https://pypi.org/simple/jax/", timeout=20).close()
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"no package index: {error}")
    colab = pins((pathlib.Path(__file__).parent / f"colab_{runtime}.txt").read_text())
    replaced = REPLACED | PLUGINS[runtime]
    assert replaced <= set(colab)
    stays = "".join(f"{name}=={version}\n" for name, version in colab.items() if name not in replaced)
    (tmp_path / "stays.txt").write_text(stays)
    (tmp_path / "jax.txt").write_text(commands()[runtime])
    resolved = subprocess.run(
        [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version=3.13",
         "--python-platform=x86_64-manylinux_2_35", "--extra=plot", "--extra=huggingface",
         f"--constraint={tmp_path}/stays.txt", ROOT / "setup.py", tmp_path / "jax.txt"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert resolved.returncode == 0, resolved.stderr
    versions = pins(resolved.stdout)
    assert {name for name in colab if versions.get(name, colab[name]) != colab[name]} == replaced
    # One release of JAX and its plugin: another plugin does not start, and JAX then runs on the CPU.
    jax = commands()[runtime].rpartition("==")[2]
    names = {"jax", "jaxlib"} | {name for name in PLUGINS[runtime] if name.startswith("jax")}
    assert {versions[name] for name in names} == {jax}
