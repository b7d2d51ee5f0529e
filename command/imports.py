"""Ctrl-C while a command imports its packages: one line and status 130, as command.program.run_program has it later."""

import os
import signal
import sys


def end_imports_in_one_line() -> None:
    """Lets a Ctrl-C end `python -m` of a package that calls this function first, until `run_program` handles it.

    A program that imports the package keeps its own handling, and an ignored signal stays ignored.
    """
    in_command = sys.argv[0] == "-m"  # as long as Python looks for the module
    if in_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(*_) -> None:
    """Ends the process. An exception instead would be replaced, or crash, in the modules of native libraries."""
    os.write(2, b"error: stopped by Ctrl-C\n")
    os._exit(128 + signal.SIGINT)
