"""Checkpoints with damaged files: no wrong value is restored, and a run continues from the newest whole checkpoint."""

import io
import json
import os
import pathlib
import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from contract.errors import ConfigError
from run.restore import (
    load_experiment,
    load_params,
    load_transformer,
    reading_mesh,
)
from tests.make_checkpoint_fixture import ROOT, fixture_experiment
from tests.train.subprocesses import run, run_main
from tests.workdir.test_checkpoint import abstract_of, assert_same_bits, state_of
from train.loop import train_and_evaluate
from workdir.checkpoint import Checkpoints
from workdir.checkpoint_errors import DamagedCheckpointError, _is_damage
from workdir.metrics_file import read_metrics

COUNTERS = {"step": 2, "seconds": 0.1 + 0.2, "examples": [2**70, 3]}
FLIPS = 12  # bits of each file, drawn anew in each run of the test


def state_with_a_large_array(seed):
    """Large enough for a data file of its own, which has no checksum of TensorStore's."""
    state = state_of(seed)
    large = np.random.default_rng(seed).normal(size=(60, 50)).astype(np.float32)
    return state | {"ema_params": {"dense": {"large": jnp.asarray(large), "half": jnp.arange(5, dtype=jnp.bfloat16)}}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(directory, keep=2)
    for step in (1, 2):
        checkpoints.save(step, state_with_a_large_array(step), eval_loss=1.0, counters=COUNTERS)
    checkpoints.close()
    return directory


def flip(path, bit):
    contents = bytearray(path.read_bytes())
    contents[bit // 8 % len(contents)] ^= 1 << bit % 8
    path.write_bytes(contents)


def damages(path):
    """Yields the name of a damage after it was done to the file, which is then whole again."""
    contents = path.read_bytes()
    for name, damaged in (("empty", b""), ("half", contents[: len(contents) // 2]), ("zeroed", bytes(len(contents)))):
        path.write_bytes(damaged)
        yield name
    for bit in random.sample(range(8 * len(contents)), FLIPS):
        path.write_bytes(contents)
        flip(path, bit)
        yield f"bit {bit}"
    path.unlink()
    yield "removed"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(contents)


def outcomes(directory):
    """Returns, for reading the state and for reading parameters, the error or None after comparing all values."""

    def state(checkpoints):
        assert_same_bits(checkpoints.restore(abstract_of(state_with_a_large_array(0)), 2), state_with_a_large_array(2))
        assert checkpoints.counters(2) == COUNTERS

    def params(checkpoints):
        wanted = abstract_of(state_with_a_large_array(0)["ema_params"])
        assert_same_bits(checkpoints.restore_params(wanted, 2)[0], state_with_a_large_array(2)["ema_params"])

    found = []
    for read in (state, params):
        checkpoints = Checkpoints(directory, keep=None)
        try:
            read(checkpoints)
            found.append(None)
        except DamagedCheckpointError as error:
            found.append(error)
        checkpoints.close()
    return found


def test_no_damage_of_a_file_changes_a_value_or_ends_in_a_traceback(saved, capfd):
    assert outcomes(saved) == [None, None]
    refused = set()
    for path in [path for path in sorted((saved / "2").rglob("*")) if path.is_file()]:
        for name in damages(path):
            for error in filter(None, outcomes(saved)):
                refused.add(path.name)
                message = str(error)
                assert "\n" not in message and len(message) < 500, (path, name)
                assert message.startswith(f"checkpoint {saved}/2 is damaged ("), (path, name)
                assert message.endswith(": use the one before it, --step=1"), (path, name)
    assert {"metrics", "_METADATA", "manifest.ocdbt"} < refused
    assert outcomes(saved) == [None, None]
    assert capfd.readouterr().err == "", "Orbax and TensorStore print no tracebacks"


def test_a_flipped_bit_of_an_array_is_named(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    largest = max((path for path in (directory / "2").rglob("*") if path.is_file()), key=os.path.getsize)
    flip(largest, 8 * os.path.getsize(largest) // 2)
    for error in outcomes(directory):
        assert error.what == "ema_params/dense/large differs from its checksum" and error.before == 1


def test_a_step_that_is_hidden_by_damage_of_metrics_is_never_the_best(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    metrics = directory / "2" / "metrics" / "metrics"
    metrics.write_text(metrics.read_text().replace('"eval_loss": 1.0', '"eval_loss": 0.5'))
    reader = Checkpoints(directory, keep=None)
    assert (reader.latest_step(), reader.best_step()) == (2, 1)
    with pytest.raises(DamagedCheckpointError, match="metrics/metrics is missing or not what was saved"):
        reader.counters(2)


def test_checkpoints_without_checksums_of_earlier_versions_are_restored(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    metrics = directory / "2" / "metrics" / "metrics"
    metrics.write_text(json.dumps({"eval_loss": 1.0, "counters": COUNTERS}))
    assert outcomes(directory) == [None, None]


def test_errors_of_memory_and_access_rights_are_no_damage():
    assert _is_damage(ValueError("DATA_LOSS: Error decoding manifest"))
    assert _is_damage(FileNotFoundError("x"))
    for error in (PermissionError(13, "x"), MemoryError(), ValueError("PERMISSION_DENIED: Error reading local file")):
        assert not _is_damage(error)
    wrapped = Exception("Encountered error while reading array index")
    wrapped.__cause__ = RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    assert not _is_damage(wrapped)


def test_a_renamed_checkpoint_is_no_longer_read_and_its_step_can_be_saved_again(saved, tmp_path):
    directory = shutil.copytree(saved, tmp_path / "copy")
    checkpoints = Checkpoints(directory, keep=2)
    for names in (["damaged-2"], ["damaged-2-2"]):
        assert checkpoints.set_aside([2]) == names
        assert checkpoints.steps() == [1]
        checkpoints.save(2, state_with_a_large_array(7), counters=COUNTERS)
        checkpoints.wait()
    checkpoints.close()
    assert sorted(os.listdir(directory)) == ["1", "2", "damaged-2", "damaged-2-2"]
    again = Checkpoints(directory, keep=None).restore(abstract_of(state_with_a_large_array(0)))
    assert_same_bits(again, state_with_a_large_array(7))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run with checkpoints of the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # data.path is relative
        train(folder / "run", folder / "cache")
    return folder / "run"


def train(workdir, cache, steps=4):
    experiment = fixture_experiment(steps, str(cache))
    object.__setattr__(experiment.train, "keep_checkpoints", 5)
    console = Console(file=io.StringIO(), width=1000)
    train_and_evaluate(experiment, str(workdir), console=console)
    return console.file.getvalue()


@pytest.fixture
def copy(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


def damage(workdir, step):
    flip(workdir / "checkpoints" / str(step) / "state" / "manifest.ocdbt", 100)


def values_of(workdir):
    timed = {"seconds", "tokens_per_second", "data_wait_fraction"}
    return [{name: line[name] for name in line.keys() - timed} for line in read_metrics(workdir)]


def test_a_run_continues_from_the_checkpoint_before_a_damaged_one(copy, finished):
    damage(copy, 4)
    printed = train(copy, copy.parent / "cache")
    [warning] = [line for line in printed.splitlines() if "damaged" in line]
    assert f"checkpoint {copy}/checkpoints/4 is damaged (" in warning and "state/manifest.ocdbt" in warning
    assert warning.endswith("it is now named damaged-4, and the run continues from step 2")
    assert "continuing from step 2" in printed
    assert sorted(os.listdir(copy / "checkpoints")) == ["2", "4", "damaged-4"]
    assert values_of(copy) == values_of(finished)
    assert "damaged" not in train(copy, copy.parent / "cache")


def test_without_a_whole_checkpoint_the_run_is_refused_and_nothing_changes(copy):
    damage(copy, 2)
    damage(copy, 4)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"all checkpoints of .* damaged, steps \[2, 4\] \(of step 4: .*\): ") as e:
        train(copy, copy.parent / "cache")
    assert "\n" not in str(e.value)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_readers_refuse_a_damaged_checkpoint_and_name_the_one_before(copy):
    damage(copy, 4)
    experiment = load_experiment(str(copy))
    with pytest.raises(DamagedCheckpointError, match=r"/4 is damaged \(.*\): use the one before it, --step=2"):
        load_params(experiment, str(copy))
    assert load_params(experiment, str(copy), 2)[1] == 2
    with pytest.raises(ConfigError, match=r"is damaged \(.*\): move that folder away to start from step 2$"):
        load_transformer(experiment, str(copy), reading_mesh(experiment))
    assert sorted(os.listdir(copy / "checkpoints")) == ["2", "4"], "readers rename nothing"
    status, out, err = run_main(f"--workdir={copy}", "--prompt=a", module="train.generate")
    assert status == 1 and out == "" and len(err.splitlines()) == 1 and err.endswith("--step=2\n")


IN_TWO_PROCESSES = """
import json, os, pathlib
from jax.sharding import NamedSharding, PartitionSpec as P
distributed()
import jax.numpy as jnp, numpy as np
from train.checkpoint import Checkpoints, abstract
from train.checkpoint_errors import DamagedCheckpointError
from train.agreement import exchange
from train.config import MeshConfig
from train.sharding import make_mesh

mesh = make_mesh(MeshConfig("jit", data=1, fsdp=2, context=1, tensor=1))
sharding = NamedSharding(mesh, P("fsdp"))
host = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
state = {"x": jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])}
checkpoints = Checkpoints(DIRECTORY, keep=2)
wanted, found = abstract(state, {"x": sharding}), []
checkpoints.save(1, state, counters={})
for truncates in (True, False):
    checkpoints.save(2, state, counters={})
    checkpoints.wait()
    if jax.process_index() == 0:
        largest = max(pathlib.Path(DIRECTORY, "2", "state", "ocdbt.process_1", "d").iterdir(), key=os.path.getsize)
        contents = bytearray(largest.read_bytes())
        contents[len(contents) // 2] ^= 1
        largest.write_bytes(contents[: len(contents) // 2] if truncates else contents)
    exchange(None)
    try:
        checkpoints.restore(wanted)
    except DamagedCheckpointError as error:
        found.append(str(error))
    found += checkpoints.set_aside([2])
again = checkpoints.restore(wanted)
same = bool(jax.jit(lambda a, b: (a == b).all())(again["x"], state["x"]))
checkpoints.close()
print(json.dumps([found, same, checkpoints.steps()]))
"""


def test_all_processes_find_the_damage_that_one_of_them_reads(tmp_path):
    program = f"DIRECTORY = {str(tmp_path)!r}\n{IN_TWO_PROCESSES}"
    first, second = run(program, devices=1, processes=2, timeout=60)
    assert first == second
    (truncated, name, flipped, other_name), same, steps = first
    assert (name, other_name) == ("damaged-2", "damaged-2-2") and same and steps == [1]
    for message in (truncated, flipped):
        assert message.startswith(f"checkpoint {tmp_path}/2 is damaged (") and message.endswith("--step=1")
    assert "x differs from its checksum" in flipped
