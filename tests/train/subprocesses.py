"""Runs test programs in subprocesses, with simulated CPU devices."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(program: str, *, devices: int, processes: int = 1, timeout: float = 120) -> list[Any]:
    """Runs a Python program in several processes at once and returns the last line that each prints, parsed as JSON.

    Args:
      program: source code. With more than one process it calls `distributed()` first, which initialises
        jax.distributed.
      devices: CPU devices of each process.
      processes: number of processes.
      timeout: seconds.

    Raises AssertionError with the output of a process that fails or exceeds the timeout.
    """
    port = free_port()
    prelude = (
        "import jax, sys\n"
        "def distributed():\n"
        f"    jax.distributed.initialize('localhost:{port}', {processes}, int(sys.argv[1]))\n"
    )
    environment = os.environ | {"XLA_FLAGS": _xla_flags(devices), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as files:
        # Files instead of pipes: a process that blocks on a full pipe would block the other processes too.
        outputs = [[files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in range(processes)]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", prelude + program, str(i)],
                cwd=ROOT,
                env=environment,
                stdout=stdout,
                stderr=stderr,
            )
            for i, (stdout, stderr) in enumerate(outputs)
        ]
        with contextlib.suppress(subprocess.TimeoutExpired):  # the exit status below shows that the process was killed
            for process in started:
                process.wait(max(0.0, end - time.monotonic()))
        for process in started:
            process.kill()
            process.wait()
        texts = [[_read(file) for file in pair] for pair in outputs]
    for process, (stdout, stderr) in zip(started, texts, strict=True):
        assert process.returncode == 0, f"exit status {process.returncode}\n{stdout}\n{stderr}"
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in texts]


def run_tests(path: str, *, devices: int, timeout: float = 900, **environment: str) -> str:
    """Runs the tests of a file in one process with so many CPU devices, and returns what pytest prints.

    path: of a file that pytest does not collect by itself. environment: variables to set.

    Raises AssertionError with the output where a test fails.
    """
    flags = f"{_xla_flags(devices)} --xla_backend_optimization_level=0"  # compilation takes most of the time
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", path],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Below the ports that Linux and macOS give to connections, which could take one before its server listens. The
# workers of pytest-xdist, whose process ids are near each other, begin 97 ports apart.
_PORTS = range(20_000, 32_000)
_OFFSETS = itertools.count(97 * os.getpid())


def free_port() -> int:
    """A port of this machine that no process listens on, and another at each call."""
    for offset in itertools.islice(_OFFSETS, len(_PORTS)):
        port = _PORTS[offset % len(_PORTS)]
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", port))
            return port
    raise AssertionError(f"all ports from {_PORTS[0]} to {_PORTS[-1]} are taken")


def start_main(
    *arguments: str, devices: int = 1, module: str = "train.main", cwd: Path = ROOT, code: Path = ROOT, **options
) -> subprocess.Popen:
    """Starts `python -m train.main` with `arguments`, on tests/small_config.py unless they contain --config.

    Args:
      *arguments: of the command line.
      devices: CPU devices of the process.
      module: another command to start, without a config.
      cwd: the folder of the process.
      code: the root of the packages that the process imports, unless `cwd` contains them.
      **options: of subprocess.Popen.

    Standard output and standard error are pipes.
    """
    config = [f"--config={ROOT / 'tests' / 'small_config.py'}"] if module == "train.main" else []
    if any(argument.startswith("--config=") for argument in arguments):
        config = []
    environment = os.environ | {"XLA_FLAGS": _xla_flags(devices), "PYTHONPATH": str(code)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *config, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_main(*arguments: str, timeout: float = 150, **options) -> tuple[int, str, str]:
    """Runs the command of `start_main` and returns its exit status, standard output and standard error."""
    process = start_main(*arguments, **options)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def _xla_flags(devices: int) -> str:
    """Returns this process's XLA flags (tests/conftest.py) with the number of devices."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"


def _read(file) -> str:
    file.seek(0)
    return file.read()
