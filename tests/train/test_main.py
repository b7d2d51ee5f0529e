"""The command line of train.main: an error is one line on standard error, without a traceback, and writes no files."""

import pytest

from tests.bad_input.answers import check_rows, row
from tests.train.subprocesses import run_main
from train import main

SMALL = "--config=tests/small_config.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, "--config.train.steps=many"], "many"),
        (["--config=configs/nothing.py"], "--config=configs/nothing.py is not a file"),
        (["--config=ul2"], "--config=ul2 is not a file: did you mean --config=configs/ul2.py?"),
        (["--config=configs/ult2.py:base"], "did you mean --config=configs/ul2.py:base?"),
        ([SMALL, "--config.objective.noise_densty", "0.3"], "unknown config field in --config.objective.noise_densty"),
        (["--config=configs/ul2.py:huge"], "unknown preset 'huge': use 'tiny', "),
        ([SMALL, "--config.data.path=no/such/folder"], "no/such/folder"),
        ([SMALL, "--config.train.batch_size=9", "--config.train.grad_accum_steps=2"], "must be a multiple of"),
        ([SMALL, "stray"], "unexpected argument 'stray'"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments, message, tmp_path):
    check_rows([row(main.main, f"--workdir={tmp_path / 'run'}", *arguments, names=message)])
    assert not (tmp_path / "run" / "config.json").exists() and not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_line_and_the_status_of_a_process(tmp_path):
    status, stdout, stderr = run_main(f"--workdir={tmp_path / 'run'}", "--config.train.stepz=5")
    line = "error: unknown config field in --config.train.stepz=5: did you mean train.steps?"
    assert (status, stdout) == (1, "") and stderr.startswith(line) and len(stderr.splitlines()) == 1
