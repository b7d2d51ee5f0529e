"""The command line of train.main: an error is one line on standard error, without a traceback, and writes no files."""

import os

import pytest

from tests.train.subprocesses import run_main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.train.stepz=5"], "unknown config field in --config.train.stepz=5: did you mean train.steps?"),
        (["--config.train.steps=many"], "many"),
        (["--config=configs/nothing.py"], "--config=configs/nothing.py is not a file"),
        (["--config=ul2"], "--config=ul2 is not a file: did you mean --config=configs/ul2.py?"),
        (["--config=configs/ult2.py:base"], "did you mean --config=configs/ul2.py:base?"),
        (
            ["--config.objective.noise_density=0.3"],
            "unknown config field in --config.objective.noise_density=0.3: did you mean objective.denoisers.",
        ),
        (["--config.objective.noise_densty", "0.3"], "unknown config field in --config.objective.noise_densty"),
        (["--config=configs/ul2.py:huge"], "unknown preset 'huge': use 'tiny', "),
        (["--config.data.path=no/such/folder"], "no/such/folder"),
        (["--config.train.batch_size=9", "--config.train.grad_accum_steps=2"], "must be a multiple of"),
        (["--config.train.grad_accum_steps=-1"], "train.grad_accum_steps=-1 must be"),
        (["--config.model.remat=atuo"], "model.remat='atuo' must be one of 'auto', 'none', 'dots', 'full'"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments, message, tmp_path):
    workdir = tmp_path / "run"
    status, stdout, stderr = run_main(f"--workdir={workdir}", *arguments)
    assert status == 1
    assert "Traceback" not in stderr and message in stderr
    assert len(stderr.splitlines()) == 1 and stderr.startswith("error: ")
    assert stdout == ""
    assert not (workdir / "config.json").exists() and not (workdir / "metrics.jsonl").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to every folder")
def test_a_workdir_without_write_permission_is_reported_in_one_line(tmp_path):
    tmp_path.chmod(0o500)
    status, _, stderr = run_main(f"--workdir={tmp_path / 'run'}")
    assert status == 1 and stderr.startswith("error: --workdir=") and len(stderr.splitlines()) == 1


def test_a_workdir_that_is_a_file_is_reported_in_one_line(tmp_path, corpus):
    (tmp_path / "run").write_text("a file")
    status, _, stderr = run_main(f"--workdir={tmp_path / 'run'}", f"--config.data.path={corpus / 'text'}")
    assert status == 1 and "cannot be written" in stderr and len(stderr.splitlines()) == 1
    assert (tmp_path / "run").read_text() == "a file"


def test_a_missing_config_is_reported_in_one_line(tmp_path):
    status, _, stderr = run_main("--config=", f"--workdir={tmp_path}")
    assert status == 1 and stderr.startswith("error: ") and len(stderr.splitlines()) == 1
