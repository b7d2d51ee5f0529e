"""Errors of the operating system, signals and too little memory end a command in one line, with a status above 0."""

import asyncio
import errno
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster.distributed import initialize
from command.program import describe_out_of_memory, run_program
from contract.errors import ConfigError
from files.atomic import writing
from files.paths import describe_os_error, os_error_in
from generate.texts import Options
from run.restore import load_experiment
from tests.train.subprocesses import ROOT
from workdir.checkpoint import Checkpoints
from workdir.metrics_file import read_metrics
from workdir.orbax_noise import silence_orbax
from workdir.run_config import read_config


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


@pytest.mark.parametrize(
    "allocate",
    [lambda: jnp.zeros(10**14).block_until_ready(), lambda: np.zeros(10**16), lambda: bytearray(10**17)],
    ids=["xla", "numpy", "python"],
)
def test_too_little_memory_is_one_line_with_the_advice_of_the_command(allocate, capsys):
    status, [line] = end_of(allocate, capsys, memory_remedy="Lower --batch_size")
    assert status == 1 and "has too little memory" in line and line.endswith(". Lower --batch_size")
    assert "grad_accum_steps" not in line


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
import pathlib, sys, time
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
    stdout, stderr = process.communicate(timeout=30)
    assert (stdout, stderr) == (b"cleaned up\n", b"error: stopped by " + name + b"\n")
    assert process.returncode == 128 + number


def test_a_signal_ends_a_program_whose_main_thread_is_in_c_code():
    process = command(
        "import ctypes, signal\n"
        "def main():\n"
        "    print('started', flush=True)\n"
        "    libc = ctypes.CDLL(None)\n"
        "    while True:\n"
        "        try:\n"
        "            libc.sleep(60)\n"
        "        except BaseException:\n"  # what C code does with an exception of a callback
        "            pass\n"
    )
    assert process.stdout.readline() == b"started\n"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143 and stderr == b"error: stopped by SIGTERM\n" and time.monotonic() - began < 15


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
    assert process.communicate(timeout=30) == (b"", b"error: a reason\n") and process.returncode == 1


_FAILING_SAVE = """
import os, resource, signal
import jax.numpy as jnp
from train.checkpoint import Checkpoints
def main():
    checkpoints = Checkpoints({folder!r}, keep=2)
    state = {{f"a{{i}}": jnp.ones((60, 60)) for i in range(20)}}
    checkpoints.save(1, state, counters={{}})
    checkpoints.wait()
    {fail}
    checkpoints.save(2, {{name: array + 1 for name, array in state.items()}}, counters={{}})
    checkpoints.wait()
"""
_FILE_LIMIT = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
_READ_ONLY = """real = os.makedirs
    def refuse(path, *a, **k):
        if "2.orbax" in str(path):
            raise OSError(30, os.strerror(30), str(path))
        real(path, *a, **k)
    os.makedirs = refuse"""


@pytest.mark.parametrize(("fail", "why"), [(_FILE_LIMIT, b"File too large"), (_READ_ONLY, b"Read-only file system")])
def test_a_failed_save_is_one_line_within_seconds_and_keeps_the_last_checkpoint(fail, why, tmp_path):
    process = command(_FAILING_SAVE.format(folder=str(tmp_path / "c"), fail=fail))
    _, stderr = process.communicate(timeout=60)  # it waited for 5 minutes
    assert process.returncode == 1 and len(stderr.splitlines()) == 1, stderr.decode()
    assert stderr.startswith(b"error: a checkpoint in ") and why in stderr and b"zarr" not in stderr
    checkpoints = Checkpoints(tmp_path / "c", keep=None)
    shape = jax.ShapeDtypeStruct((60, 60), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    state = checkpoints.restore({f"a{i}": shape for i in range(20)})
    assert checkpoints.latest_step() == 1 and all((array == 1).all() for array in state.values())
    checkpoints.close()


def test_an_output_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    message = r"--html=.*: No space left on device: free space"
    with pytest.raises(ConfigError, match=message), writing(str(path), "--html") as file:
        file.write("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("platforms", ["cuda", "tpu"])
def test_devices_that_are_not_there_are_one_line(platforms):
    if any(device.platform in ("gpu", "tpu") for device in jax.devices()):
        pytest.skip("this machine has an accelerator")
    code = "from command.flags import run_command\nimport jax\nrun_command(jax.devices)"
    environment = os.environ | {"JAX_PLATFORMS": platforms}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert len(lines) == 1 and lines[0].startswith(f"error: JAX cannot use the devices of JAX_PLATFORMS={platforms}: ")


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":1234", "localhost:port", "localhost:99999"])
def test_a_coordinator_without_a_port_is_refused(address):
    with pytest.raises(ConfigError, match=r"--coordinator_address=.* must be host:port"):
        initialize(address, 1, 0, multi_host=False, timeout_seconds=5)


@pytest.mark.parametrize("timeout", [0, 10**18])
def test_a_join_timeout_beyond_reason_is_refused(timeout):
    with pytest.raises(ConfigError, match=f"--join_timeout={timeout} must be "):
        initialize("localhost:1", 1, 0, multi_host=False, timeout_seconds=timeout)


@pytest.mark.parametrize("field", ["top_k", "max_tokens", "num_samples"])
def test_numbers_beyond_reason_are_refused(field):
    with pytest.raises(ConfigError, match=f"--{field}=99999999999 must be at most "):
        Options(**{field: 99999999999}).check()


@pytest.mark.parametrize("contents", ["null", "[]", "{}", '{"data": {}}', '{"data": 1}', "9" * 5000])
def test_a_config_json_that_is_no_config_is_refused(contents, tmp_path):
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(ConfigError, match=r"config.json(: the config has no section '| is damaged| cannot be read)"):
        load_experiment(str(tmp_path))


def test_a_missing_run_is_named_as_it_was_given(tmp_path):
    with pytest.raises(ConfigError, match=r"^train.init_from=/nope is not the folder of a run"):
        read_config("/nope", named_by="train.init_from")


@pytest.mark.parametrize(
    "line", ['{"step": null, "split": "eval"}', '{"step": 1, "split": "eval", "loss": "x"}', '{"split": "eval"}', "[1]"]
)
def test_a_line_that_is_not_of_metrics_is_refused(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match="line 1 is not a line of metrics"):
        read_metrics(tmp_path)


def test_a_line_end_in_a_message_is_escaped(capsys):
    status, err = end_of(raising(ConfigError("a\nfolder: name another")), capsys)
    assert (status, err) == (1, ["error: a\\nfolder: name another"])


def test_a_library_that_does_not_fit_into_memory_is_one_line(capsys):
    error = ImportError("numpy/_special_ufuncs.so: failed to map segment from shared object")
    status, err = end_of(raising(error), capsys)
    assert status == 1 and err[0].startswith("error: this machine has too little memory: numpy/_special_ufuncs.so")
    with pytest.raises(ImportError, match="another module"):
        end_of(raising(ImportError("cannot import another module")), capsys)


def test_a_closed_standard_output_is_no_error():
    process = subprocess.run(
        [sys.executable, "-c", "import command.program as p; p.run_program(lambda: print('x'))"],
        cwd=ROOT,
        preexec_fn=lambda: os.close(1),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_errors_in_a_program_that_goes_on_leave_one_thread_that_waits(capsys):
    before = threading.active_count()
    for _ in range(20):
        end_of(raising(ConfigError("again")), capsys)
    end = time.monotonic() + 20
    while threading.active_count() > before + 1:  # the threads of signals end soon
        assert time.monotonic() < end
        time.sleep(0.05)


def test_asyncio_does_not_log_the_failed_tasks_of_orbax(caplog):
    """Only one of the arrays whose writing fails is awaited."""
    silence_orbax()

    def fail_unseen(path):
        names = {}
        exec(compile("async def write():\n    raise ValueError('No space left on device')\n", path, "exec"), names)

        async def main():
            asyncio.get_running_loop().create_task(names["write"]())
            await asyncio.sleep(0.01)

        asyncio.run(main())
        gc.collect()

    fail_unseen(os.path.join(os.sep, "x", "orbax", "checkpoint", "serialization.py"))
    assert not caplog.records
    fail_unseen("other.py")
    assert "exception was never retrieved" in caplog.text
