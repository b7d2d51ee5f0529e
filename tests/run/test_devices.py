"""Several devices and processes: tests/run/eight_devices.py in one process of eight, and what others read of it."""

import json

import jax
import numpy as np
import pytest

from configs.base import corpus as a_corpus
from evaluation.__main__ import main as evaluate
from experiment.experiment import make_experiment
from generate.__main__ import main as generate
from run.compiled_run import make_run
from run.restore import load_experiment, load_params
from run.sharding import local_rows
from tests.in_process import run_here
from tests.table import small_config
from tests.train.subprocesses import run, run_tests

pytestmark = pytest.mark.slow

# The meshes of runs that are trained on eight devices and read by one.
READ = {
    "fsdp_and_tensor": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "optimizer__learning_rate": 1e-2},
    "pmap": {"mesh__backend": "pmap", "optimizer__learning_rate": 1e-2},
}


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """The folder with the runs of eight devices, by the names in READ, and with what they print there."""
    folder = tmp_path_factory.mktemp("eight")
    print(run_tests("tests/run/eight_devices.py", devices=8, RUNS=str(folder), TEXT=str(corpus / "text")))
    return folder


def test_eight_devices(runs, capsys):
    assert all((runs / f"{mesh}.json").exists() for mesh in READ)


@pytest.mark.parametrize("mesh", READ)
def test_a_run_of_eight_devices_is_read_by_one(runs, mesh):
    """Fails where evaluate, generate or init_from needs the mesh of the training run."""
    workdir, there = str(runs / mesh), json.loads((runs / f"{mesh}.json").read_text())
    lines = [json.loads(line) for line in (runs / mesh / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["split"] == "eval"][-1]
    here = json.loads(run_here(evaluate, f"--workdir={workdir}")[1])
    for name in ("loss", "accuracy", "bits_per_byte", "step"):
        assert here[name] == pytest.approx(trained[name], rel=1e-5), name
        assert there["evaluate"][name] == pytest.approx(trained[name], rel=1e-5), name
    params, _ = load_params(load_experiment(workdir), workdir)
    assert sum(abs(np.asarray(leaf)).astype(float).sum() for leaf in jax.tree.leaves(params)) == there["sum"]
    _, answer, _ = run_here(generate, f"--workdir={workdir}", "--prompt=import ", "--temperature=0", "--max_tokens=8")
    assert answer == there["generate"] and answer.startswith("import ")


FIRST, COUNT = 3, 2  # batches after a checkpoint of step 3


def checksums(fields, *, mesh__tensor=1):
    """(batch, row) -> the checksum of each row that this process reads of two corpora configs."""
    import zlib

    experiment = make_experiment(small_config("ul2", "encoder_decoder", **fields, mesh__tensor=mesh__tensor))
    made = make_run(experiment, show_progress=False)
    rows, batches = local_rows(made.batch_sharding, experiment.train.batch_size), made.train_batches(FIRST)
    found = []
    for number in range(FIRST, FIRST + COUNT):
        batch = next(batches)
        for i, row in enumerate(rows):
            contents = b"".join(np.ascontiguousarray(batch[name][i]).tobytes() for name in sorted(batch))
            found.append([number, int(row), zlib.crc32(contents)])
    return found


def test_four_processes_read_the_rows_of_one(corpus):
    """Two pairs of processes, each of which holds the same rows (mesh.tensor=2), of one corpus and of three."""
    paths = {"modules": "text/[a-b]*.txt", "others": "text/[c-z]*.txt", "pairs": "pairs.jsonl"}
    sources = {
        name: a_corpus(source="jsonl" if name == "pairs" else "text", path=str(corpus / path), weight=weight)
        for (name, path), weight in zip(paths.items(), (0.5, 0.3, 0.2), strict=True)
    }
    one = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    three = one | {"data__source": "", "data__path": "", "data__sources": sources}
    program = (
        "distributed()\nimport json\nfrom tests.run.test_devices import checksums\n"
        f"print(json.dumps([checksums(fields, mesh__tensor=2) for fields in {[one, three]!r}]))"
    )
    processes = run(program, devices=1, processes=4, timeout=300)
    for k, fields in enumerate((one, three)):
        expected = checksums(fields)
        assert [row[:2] for row in expected] == [[FIRST + i, row] for i in range(COUNT) for row in range(8)]
        found = sorted(tuple(row) for process in processes for row in process[k])
        assert found == sorted(2 * [tuple(row) for row in expected])
