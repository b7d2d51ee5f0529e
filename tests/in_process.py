"""Runs commands in this process, without the seconds in which a process of its own imports and compiles."""

import contextlib
import io
import sys
import warnings
from collections.abc import Callable

import pytest

from command import program
from command.flags import run_command
from tests.train.subprocesses import ROOT


def run_here(main: Callable[[], None], *arguments: object) -> tuple[int, str, str]:
    """Runs the `main` of a command as `run_main` does, and returns its status, standard output and standard error.

    Raises what the command raises, but for SystemExit.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.modules.pop("config_config", None)  # the module of the last --config, which ml_collections would keep
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["command", *map(str, arguments)])
        # A thread for each failed command, which ends this process with that command's status when the tests are done.
        patch.setattr(program, "_limit_exit", lambda status: None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run_command(main)
            except SystemExit as end:
                status = end.code or 0
    return status, out.getvalue(), err.getvalue()
