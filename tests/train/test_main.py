"""The command line: every error is one line on standard error, without a traceback, and leaves nothing behind."""

import os

import pytest

from tests.train.subprocesses import run_main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.train.stepz=5"], "unknown config field in --config.train.stepz=5: did you mean steps?"),
        (["--config.train.steps=many"], "many"),
        (["--config=configs/nothing.py"], "--config=configs/nothing.py is not a file"),
        (["--config=configs/ul2.py:huge"], "unknown preset 'huge': use 'tiny', "),
        (["--config.data.path=no/such/folder"], "no/such/folder"),
        (["--config.train.batch_size=9", "--config.train.grad_accum_steps=2"], "must be a multiple of"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path):
    workdir = tmp_path / "run"
    status, out, err = run_main(f"--workdir={workdir}", *arguments)
    assert status == 1
    assert "Traceback" not in err and len(err.splitlines()) == 1 and err.startswith("error: ") and message in err
    assert out == ""
    assert not (workdir / "config.json").exists() and not (workdir / "metrics.jsonl").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    status, _, err = run_main(f"--workdir={tmp_path / 'run'}")
    assert status == 1 and err.startswith("error: --workdir=") and len(err.splitlines()) == 1


def test_a_workdir_that_is_a_file(tmp_path, corpus):
    (tmp_path / "run").write_text("a file")
    status, _, err = run_main(f"--workdir={tmp_path / 'run'}", f"--config.data.path={corpus / 'text'}")
    assert status == 1 and "cannot be written" in err and len(err.splitlines()) == 1
    assert (tmp_path / "run").read_text() == "a file"


def test_a_missing_config_says_how_it_is_given(tmp_path):
    status, _, err = run_main("--config=", f"--workdir={tmp_path}")
    assert status == 1 and err.startswith("error: ") and len(err.splitlines()) == 1
