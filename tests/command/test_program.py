"""Errors of the operating system, signals and too little memory end a program in one line, with a status above 0."""

import errno
import io
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from command.program import describe_out_of_memory, print_note, run_program
from contract.errors import ConfigError, Stopped
from files.paths import describe_os_error, os_error_in
from tests.train.subprocesses import ROOT


def end_of(main, capsys, **options):
    """Runs `main` as a command, and returns its status and its lines on standard error."""
    with pytest.raises(SystemExit) as end:
        run_program(main, **options)
    return end.value.code, capsys.readouterr().err.splitlines()


def raising(error):
    def main():
        raise error

    return main


def command(program, **options):
    """Starts Python code with `main` as a command of its own."""
    # A parent that runs in the background of a shell leaves Ctrl-C ignored.
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{prelude}\nfrom command.program import run_program\n{program}\nrun_program(main)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_an_error_of_the_operating_system_is_one_line(number, capsys):
    status, lines = end_of(raising(OSError(number, os.strerror(number), "/data/a file")), capsys)
    assert status == 1 and len(lines) == 1
    assert lines[0].startswith(f"error: /data/a file: {os.strerror(number)}: ")  # and what to do


def test_an_error_of_python_code_keeps_its_traceback():
    assert describe_os_error(io.UnsupportedOperation("not readable")) is None
    with pytest.raises(io.UnsupportedOperation):
        run_program(raising(io.UnsupportedOperation("not readable")))
    with pytest.raises(ValueError, match="a bug"):
        run_program(raising(ValueError("a bug")))


def test_an_error_that_is_no_exception_is_one_line(capsys):
    class PanicException(BaseException):
        """As those of PyO3."""

    assert end_of(raising(PanicException("index out of bounds")), capsys) == (
        1,
        ["error: PanicException: index out of bounds"],
    )


def test_a_command_that_a_signal_stopped_has_the_status_of_sigterm(capsys):
    assert end_of(raising(Stopped("run it again")), capsys) == (128 + signal.SIGTERM, ["error: run it again"])


def test_a_line_end_in_a_message_is_escaped(capsys):
    status, err = end_of(raising(ConfigError("a\nfolder: name another")), capsys)
    assert (status, err) == (1, ["error: a\\nfolder: name another"])


def test_characters_that_move_a_terminal_or_turn_writing_are_escaped(capsys):
    hostile = "\x1b[2Jgreen\x00\x9b1m\u202e\u2066\u200b\x7f\r\u2028é 日\u3000\xa0\t\U0001f600"
    shown = "\\x1b[2Jgreen\\x00\\x9b1m\\u202e\\u2066\\u200b\\x7f\\r\\u2028é 日\u3000\xa0\t\U0001f600"
    with pytest.raises(SystemExit):
        run_program(raising(ConfigError(hostile)))
    assert capsys.readouterr().err == f"error: {shown}\n"
    print_note(hostile)
    assert capsys.readouterr().err == f"note: {shown}\n"


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: jnp.zeros(10**14).block_until_ready(),
        lambda: np.zeros(10**16),
        raising(ImportError("lib.so: failed to map segment from shared object")),
    ],
    ids=["xla", "numpy", "loader"],
)
def test_too_little_memory_is_one_line_with_the_advice_of_the_command(allocate, capsys):
    status, [line] = end_of(allocate, capsys, memory_remedy="Lower --batch_size")
    assert status == 1 and "has too little memory" in line and line.endswith(". Lower --batch_size")


def test_a_full_disk_is_not_called_too_little_memory():
    text = "RESOURCE_EXHAUSTED: Failed to write 2 bytes to file 7: No space left on device [os_error_code='28']"
    assert describe_out_of_memory(RuntimeError(text)) is None
    assert os_error_in(text).startswith("No space left on device: free space")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        process = command("def main(): print('x' * 100)", stdout=full)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and len(stderr.splitlines()) == 1
    assert stderr.startswith(b"error: standard output or an open file failed: No space left on device")


def test_a_terminal_that_cannot_show_a_character_gets_its_escape():
    process = command("def main(): print('caf\\u00e9')", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert process.communicate(timeout=60) == (b"caf\\xe9\n", b"") and process.returncode == 0


_BUSY = """
import ctypes, time
def main():
    try:
        print("started", flush=True)
        {busy}
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, b"SIGTERM"), (signal.SIGINT, b"Ctrl-C")])
def test_a_signal_cleans_up_and_is_one_line(number, name):
    process = command(_BUSY.format(busy="time.sleep(60)"))
    assert process.stdout.readline() == b"started\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert (stdout, stderr) == (b"cleaned up\n", b"error: stopped by " + name + b"\n")
    assert process.returncode == 128 + number


def test_handlers_of_signals_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run_program(lambda: None)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_threads_that_wait_forever_do_not_keep_a_failed_command():
    process = command(
        "import threading\n"
        "from contract.errors import ConfigError\n"
        "def main():\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    raise ConfigError('a reason')\n"
    )
    assert process.communicate(timeout=60) == (b"", b"error: a reason\n") and process.returncode == 1


@pytest.mark.parametrize(
    "write",
    ["print('a line', flush=True)", "print('a line')", "rich.console.Console().print('a line')"],
    ids=["flushed", "print", "rich"],
)
def test_a_command_whose_reader_ends_first_ends_quietly(write):
    imports = "sys, rich.console" if "rich" in write else "sys"
    process = command(f"import {imports}\ndef main():\n    sys.stdin.read()\n    {write}", stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b"" and process.wait() == 141


def test_the_broken_pipe_of_a_connection_is_not_hidden():
    process = command("def main(): raise BrokenPipeError('a server')")
    assert b"BrokenPipeError: a server" in process.communicate(timeout=60)[1] and process.returncode == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="this machine has an accelerator")
def test_devices_that_are_not_there_are_one_line():
    code = "from command.flags import run_command\nimport jax\nrun_command(jax.devices)"
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert len(lines) == 1 and lines[0].startswith("error: JAX cannot use the devices of JAX_PLATFORMS=cuda: ")


def test_an_ignored_signal_stays_ignored():
    program = "import os\ndef main():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print('goes on')"
    process = command(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{program}")
    assert process.communicate(timeout=60) == (b"goes on\n", b"") and process.returncode == 0


@pytest.mark.parametrize(("main", "status"), [("print('a line')", 0), ("raise ConfigError('a reason')", 1)])
def test_a_command_without_standard_output_ends_as_with_it(main, status):
    closed = "import os, sys\nos.close(1)\nsys.stdout = None\n"  # as Python begins after `>&-`
    process = command(f"{closed}from contract.errors import ConfigError\ndef main():\n    {main}\n")
    assert process.communicate(timeout=60)[1] == (b"error: a reason\n" if status else b"")
    assert process.returncode == status
