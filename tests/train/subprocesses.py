"""Runs test programs in processes of their own, with as many simulated CPU devices as they need."""

import contextlib
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
    """Runs Python source `program` in `processes` processes at once; returns the last line each printed, read as JSON.

    A program of more than one process starts with `distributed()`, which joins them through jax.distributed. Fails
    with what was printed where a process fails or has not ended after `timeout` seconds.
    """
    port = free_port()
    prelude = (
        "import jax, sys\n"
        "def distributed():\n"
        f"    jax.distributed.initialize('localhost:{port}', {processes}, int(sys.argv[1]))\n"
    )
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as files:
        # Files and not pipes: a process whose pipe is full would keep the others waiting for it.
        outputs = [[files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in range(processes)]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", prelude + program, str(i)], cwd=ROOT, env=environment, stdout=out, stderr=err
            )
            for i, (out, err) in enumerate(outputs)
        ]
        with contextlib.suppress(subprocess.TimeoutExpired):  # seen below, in the exit status
            for process in started:
                process.wait(max(0.0, end - time.monotonic()))
        for process in started:
            process.kill()
            process.wait()
        texts = [[_read(file) for file in pair] for pair in outputs]
    for process, (out, err) in zip(started, texts, strict=True):
        assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return [json.loads(out.splitlines()[-1]) for out, _ in texts]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start_main(*arguments: str, devices: int = 1, module: str = "train.main", **options) -> subprocess.Popen:
    """Starts `python -m train.main` on tests/small_config.py, its output in pipes; `arguments` come last."""
    config = ["--config=tests/small_config.py"] if module == "train.main" else []
    if any(argument.startswith("--config=") for argument in arguments):
        config = []
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *config, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_main(*arguments: str, timeout: float = 150, **options) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `start_main`'s program."""
    process = start_main(*arguments, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


def _read(file) -> str:
    file.seek(0)
    return file.read()
