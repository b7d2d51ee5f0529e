"""Ctrl-C while a command imports its packages: one line and status 130, as command.program.run_program has it later.

Packages of commands import this module first. A program that imports them keeps its own handling of signals.
"""

import os
import signal
import sys


def end_at_once(*_) -> None:
    """Ends the process. An exception instead would be replaced, or crash, in the modules of native libraries."""
    os.write(2, b"error: stopped by Ctrl-C\n")
    os._exit(128 + signal.SIGINT)


# Python looks for the module of `python -m`, which is one of these packages; and the signal is not ignored.
is_ours = any(word.startswith(("train.", "data.", "benchmarks.")) for word in sys.orig_argv)
if sys.argv[0] == "-m" and is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)
