"""Seeds side by side: each run equals the one that trains alone, in its numbers and in its folder."""

import io
import itertools
import json
import os
import shutil

import jax
import numpy as np
import pytest
from rich.console import Console

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.optimizer import make_optimizer
from plan.estimate import abstract_batch
from run.compiled_run import abstract_state, make_run
from run.sharding import batch_sharding, make_mesh
from studies import side_by_side
from studies.side_by_side import train_side_by_side
from tests.table import small_config
from tests.train.subprocesses import run as run_program
from train.loop import train_and_evaluate
from workdir.checkpoint import Checkpoints
from workdir.run_config import read_config
from workdir.workdir_lock import WorkdirLock

SEEDS = (0, 3, 5)
TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}


def experiment_of(corpus, seed, name="clm", architecture="decoder_only", **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    options = {
        "optimizer__learning_rate": 1e-2,
        "model__dropout_rate": 0.1,
        "train__steps": 6,
        "train__eval_every": 3,
        "train__checkpoint_every": 2,
        "train__keep_checkpoints": 3,
        "train__ema_decay": 0.5,
    }
    return make_experiment(small_config(name, architecture, seed=seed, **(text | options | overrides)))


def lines_of(workdir):
    with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as file:
        return [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in file]


def train_together(corpus, workdirs, seeds=SEEDS, **overrides):
    experiments = [experiment_of(corpus, seed, **overrides) for seed in seeds]
    console = Console(file=io.StringIO(), width=200)
    finished = train_side_by_side(experiments, [str(workdir) for workdir in workdirs], console=console)
    return finished, console.file.getvalue()


def assert_same_run(workdir, alone, rtol=1e-4):
    """Equal lines, configs and files."""
    found, expected = lines_of(workdir), lines_of(alone)
    assert [(line["step"], line["split"]) for line in found] == [(line["step"], line["split"]) for line in expected]
    for line, expected_line in zip(found, expected, strict=True):
        assert line.keys() == expected_line.keys()
        assert np.isfinite(line["loss"])
        for name in [name for name in line if name != "split"]:
            if expected_line[name] is None:
                assert line[name] is None
                continue
            atol = 5e-3 if "accuracy" in name else 0  # of a few hundred tokens
            np.testing.assert_allclose(line[name], expected_line[name], rtol=rtol, atol=atol, err_msg=name)
    assert read_config(workdir) == read_config(alone)
    assert sorted(os.listdir(workdir)) == sorted(os.listdir(alone))
    assert steps_of(workdir) == steps_of(alone)


def steps_of(workdir):
    return Checkpoints(os.path.join(workdir, "checkpoints"), keep=None).steps()


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """The workdirs of one run after the other."""
    workdirs = [tmp_path_factory.mktemp("alone") / str(seed) for seed in SEEDS]
    for seed, workdir in zip(SEEDS, workdirs, strict=True):
        train_and_evaluate(experiment_of(corpus, seed), str(workdir), console=Console(file=io.StringIO()))
    return workdirs


@pytest.fixture(scope="module")
def together(corpus, tmp_path_factory):
    """The workdirs of the same runs side by side, and what was printed."""
    workdirs = [tmp_path_factory.mktemp("together") / str(seed) for seed in SEEDS]
    finished, printed = train_together(corpus, workdirs)
    assert finished
    return workdirs, printed


def test_runs_side_by_side_equal_runs_one_after_another(alone, together):
    for workdir, expected in zip(together[0], alone, strict=True):
        assert_same_run(workdir, expected)
    losses = [[line["loss"] for line in lines_of(workdir)] for workdir in alone]
    assert min(abs(np.subtract(a, b)).max() for a, b in itertools.pairwise(losses)) > 0.01  # seeds differ
    assert all(min(loss[1:]) < loss[0] for loss in losses)


def test_each_line_that_is_printed_names_its_seed(together):
    printed = together[1]
    for seed in SEEDS:
        for text in ("step 6/6  loss", "eval at step 6:  loss", "done: 6 steps"):
            assert f"seed {seed}: {text}" in printed
    assert printed.count("the unigram entropy of the corpus") == 1


def test_a_run_of_several_is_continued_alone_and_runs_alone_are_continued_together(corpus, alone, together, tmp_path):
    """Two runs trained side by side to step 4 go on, one of them alone."""
    workdirs = [tmp_path / str(seed) for seed in SEEDS]
    for workdir, source in zip(workdirs, (together[0][0], alone[1], alone[2]), strict=True):
        shutil.copytree(source, workdir)
        for step in (5, 6):
            shutil.rmtree(workdir / "checkpoints" / str(step), ignore_errors=True)
    console = Console(file=io.StringIO(), width=200)
    assert train_and_evaluate(experiment_of(corpus, SEEDS[0]), str(workdirs[0]), console=console)
    assert "continuing from step 4" in console.file.getvalue()
    finished, printed = train_together(corpus, workdirs[1:], SEEDS[1:])
    assert finished and printed.count("continuing from step 4") == 2
    for workdir, expected in zip(workdirs, alone, strict=True):
        assert_same_run(workdir, expected)


def test_runs_that_were_killed_while_they_saved_return_to_their_common_step(corpus, together, tmp_path):
    """The first run has saved step 4, the others only step 2. They continue to equal results exactly."""
    workdirs = [tmp_path / str(seed) for seed in SEEDS]
    for k, (workdir, source) in enumerate(zip(workdirs, together[0], strict=True)):
        shutil.copytree(source, workdir)
        for step in (6,) if k == 0 else (4, 6):
            shutil.rmtree(workdir / "checkpoints" / str(step))
    finished, printed = train_together(corpus, workdirs)
    assert finished and printed.count("continuing from step 2") == 3
    assert printed.count("returns from step 4 to the checkpoint of step 2") == 1
    for workdir, expected in zip(workdirs, together[0], strict=True):
        assert lines_of(workdir) == lines_of(expected)
        assert steps_of(workdir) == steps_of(expected)


def test_runs_without_a_common_step_are_trained_in_groups(corpus, together, tmp_path, monkeypatch):
    """A finished run stays as it is, and a new one starts."""
    monkeypatch.setattr(side_by_side, "print_summary", lambda *_: None)
    workdirs = [tmp_path / str(seed) for seed in SEEDS]
    shutil.copytree(together[0][0], workdirs[0])
    shutil.copytree(together[0][1], workdirs[1])
    shutil.rmtree(workdirs[1] / "checkpoints" / "6")
    groups = []
    original = side_by_side._train_group
    monkeypatch.setattr(
        side_by_side,
        "_train_group",
        lambda shared, group, console: (
            groups.append([(run.experiment.seed, start.step) for run, start, _ in group])
            or original(shared, group, console)
        ),
    )
    assert train_together(corpus, workdirs)[0]
    assert groups == [[(5, 0)], [(3, 4)], [(0, 6)]]
    for workdir, expected in zip(workdirs, together[0], strict=True):
        assert_same_run(workdir, expected)


@pytest.mark.parametrize(
    ("name", "architecture", "precision", "rtol"),
    [
        ("electra", "encoder_only", "float32", 1e-3),
        ("ul2", "encoder_decoder", "float32", 1e-4),
        ("clm", "decoder_only", "float16", 1e-2),
    ],
)
def test_learners_that_draw_keys_mixtures_and_loss_scales_equal_runs_alone(
    corpus, tmp_path, name, architecture, precision, rtol
):
    overrides = {"name": name, "architecture": architecture, "train__steps": 2, "train__grad_accum_steps": 2}
    overrides |= {"precision": precision}
    workdirs = [tmp_path / "together" / str(seed) for seed in (1, 2)]
    train_together(corpus, workdirs, (1, 2), **overrides)
    for seed, workdir in zip((1, 2), workdirs, strict=True):
        expected = tmp_path / "alone" / str(seed)
        train_and_evaluate(experiment_of(corpus, seed, **overrides), str(expected), console=Console(file=io.StringIO()))
        assert_same_run(workdir, expected, rtol=rtol)


DEVICES = """
import json
import tests.train.test_side_by_side as tests
import pathlib
corpus, folder, mesh = pathlib.Path({corpus!r}), pathlib.Path({folder!r}), {mesh!r}
finished, printed = tests.train_together(corpus, [folder / str(seed) for seed in tests.SEEDS], **mesh)
print(json.dumps(finished))
"""


def test_a_mesh_of_four_devices_trains_the_same(corpus, alone, tmp_path):
    mesh = {"mesh__data": 2, "mesh__fsdp": 2}
    program = DEVICES.format(corpus=str(corpus), folder=str(tmp_path), mesh=mesh)
    assert run_program(program, devices=4, timeout=300) == [True]
    for seed, expected in zip(SEEDS, alone, strict=True):
        found = [line["loss"] for line in lines_of(tmp_path / str(seed))]
        np.testing.assert_allclose(found, [line["loss"] for line in lines_of(expected)], rtol=1e-4)


def test_a_gradient_that_is_not_finite_changes_no_other_run_and_the_error_names_its_run(
    corpus, alone, tmp_path, monkeypatch
):
    """The loss weights of seed 3 are NaN from batch 2 on; the run stops after two such updates."""
    batches = side_by_side.StackedRuns.train_batches

    def damaged(self, start):
        for n, batch in enumerate(batches(self, start)):
            if n >= 2:
                batch["decoder_loss_weights"][1] = np.nan
            yield batch

    monkeypatch.setattr(side_by_side.StackedRuns, "train_batches", damaged)
    workdirs = [tmp_path / str(seed) for seed in SEEDS]
    message = rf"^seed 3 \({workdirs[1]}\): stopped at step 4: the gradients of 2 updates in a row were not finite"
    with pytest.raises(ConfigError, match=message):
        train_together(corpus, workdirs, train__max_nonfinite_updates=2)
    assert [line["skipped_updates"] for line in lines_of(workdirs[1]) if line["split"] == "train"] == [0, 0, 1]
    for k in (0, 2):
        found = [(line["step"], line["loss"]) for line in lines_of(workdirs[k])]
        np.testing.assert_allclose(found, [(line["step"], line["loss"]) for line in lines_of(alone[k])][: len(found)])
        assert found[-1][0] >= 3


def test_a_request_to_stop_saves_all_runs_and_starts_no_further_group(corpus, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side.StopRequest, "requested", lambda self, step: step == 3)
    workdirs = [tmp_path / str(seed) for seed in SEEDS]
    shutil.copytree(alone[0], workdirs[0])
    shutil.rmtree(workdirs[0] / "checkpoints" / "6")
    finished, printed = train_together(corpus, workdirs)
    assert not finished and printed.count("stopped at step 3; its checkpoint is saved") == 2
    assert [steps_of(workdir) for workdir in workdirs] == [[2, 4], [2, 3], [2, 3]]
    assert len(lines_of(workdirs[0])) == len(lines_of(alone[0]))  # this run was not started


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__d_ff": 64, "train__steps": 8},
            r"^model.d_ff=48 and model.d_ff=64 cannot train side by side: .* 1 more",
        ),
        ({"seed": 0}, r"^the seeds 0, 0 must differ"),
    ],
)
def test_experiments_that_differ_in_more_than_the_seed_are_refused(corpus, tmp_path, overrides, message):
    first, second = experiment_of(corpus, 0), experiment_of(corpus, **({"seed": 1} | overrides))
    with pytest.raises(ConfigError, match=message) as error:
        train_side_by_side([first, second], [str(tmp_path / "a"), str(tmp_path / "b")])
    assert "\n" not in str(error.value) and not os.listdir(tmp_path)


def test_pmap_equal_workdirs_and_the_workdir_of_another_run_are_refused(corpus, alone, tmp_path):
    experiments = [experiment_of(corpus, seed) for seed in (0, 1)]
    with pytest.raises(ConfigError, match=r"^the workdirs .* must differ"):
        train_side_by_side(experiments, [str(tmp_path / "a"), str(tmp_path / "b" / ".." / "a")])
    with pytest.raises(ConfigError, match=rf"^seed 1 \({alone[1]}\): the workdir contains a run with another config"):
        train_side_by_side(experiments, [str(tmp_path / "a"), str(alone[1])])
    assert steps_of(alone[1]) == [2, 4, 6]
    pmap = [experiment_of(corpus, seed, mesh__backend="pmap") for seed in (0, 1)]
    with pytest.raises(ConfigError, match=r"^mesh.backend='pmap' must be 'jit'"):
        train_side_by_side(pmap, [str(tmp_path / "a"), str(tmp_path / "b")])


def test_one_program_is_compiled_for_all_seeds(corpus):
    """JAX's compilation cache then has the train step of every seed."""
    texts = []
    for seed in (0, 2**40 + 7):
        run = make_run(experiment_of(corpus, seed), show_progress=False)
        batch = abstract_batch(run.experiment, run.batch_sharding)
        lowered = run.compiled_step.lower(run.state_shapes, batch, side_by_side.seed_array(seed))
        texts.append(lowered.as_text())
        assert jax.random.key(seed) == jax.random.key(side_by_side.seed_array(seed))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("name", "architecture", "num_attentions", "num_biases"),
    [
        ("clm", "decoder_only", 1, 0),
        ("span_corruption", "decoder_only", 1, 1),
        ("deshuffling", "encoder_decoder", 3, 2),
    ],
)
def test_the_step_of_several_seeds_lowers_with_cudnns_attention(
    name, architecture, num_attentions, num_biases, monkeypatch
):
    """With masks of one head, biases of all heads, and lengths with biases of one row.

    JAX's rule for jax.vmap fails for masks of one head and biases of one row.
    """
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr("run.compiled_run.platform_of", lambda device: "cuda")
    overrides = {"model__positions": "relative" if num_biases else "rope", "model__attention": "cudnn"}
    experiment = make_experiment(small_config(name, architecture, **overrides) | {"precision": "bfloat16"})
    assert experiment.model.one_segment is (name != "clm")  # CLM's documents are segments
    mesh = make_mesh(experiment.mesh)
    optimizer, rows = make_optimizer(experiment.optimizer, 2), batch_sharding(mesh)
    state, batch = abstract_state(experiment, mesh), abstract_batch(experiment, rows)
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), (state, batch))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = side_by_side.compiled_side_by_side_step(experiment, optimizer, shardings, rows)
    text = step.trace(*stacked, np.zeros(2, np.int32)).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "@__cudnn$fmha" in line]
    # The rows of both seeds: 2 * 8 of 40 positions, 2 heads of 16.
    assert len(calls) == 2 * num_attentions and all("(tensor<16x40x2x16xbf16>" in call for call in calls)
    gradients = sum("tensor<16x2x40x40xbf16>" in call.rpartition("->")[2] for call in calls)
    assert gradients == num_biases  # CLM's mask has none


def test_a_workdir_in_use_is_refused_and_the_others_are_freed(corpus, tmp_path):
    workdirs = [tmp_path / "a", tmp_path / "b"]
    workdirs[1].mkdir()
    experiments = [experiment_of(corpus, seed) for seed in (0, 1)]
    with WorkdirLock(str(workdirs[1])), pytest.raises(ConfigError, match=f"^--workdir={workdirs[1]} is in use by"):
        train_side_by_side(experiments, [str(workdir) for workdir in workdirs])
    assert all(not (workdir / name).exists() for workdir in workdirs for name in ("run.lock", "config.json"))
