"""What cannot be written or read ends a command in one line."""

import logging

import jax
import jax.numpy as jnp

from tests.command.test_program import command
from workdir.checkpoint import Checkpoints, _print_errors_of_orbax_once

_FAILING_SAVE = """
import os, resource, signal
import jax.numpy as jnp
from workdir.checkpoint import Checkpoints
def main():
    checkpoints = Checkpoints({folder!r}, keep=2)
    state = {{f"a{{i}}": jnp.sin(jnp.arange(3600.0)) for i in range(20)}}
    checkpoints.save(1, state, counters={{}})
    checkpoints.wait()
    {fail}
    checkpoints.save(2, {{name: array + 1 for name, array in state.items()}}, counters={{}})
    checkpoints.wait()
"""
_FILE_LIMIT = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"


def test_a_failed_save_is_one_line_within_seconds_and_keeps_the_last_checkpoint(tmp_path):
    process = command(_FAILING_SAVE.format(folder=str(tmp_path / "c"), fail=_FILE_LIMIT))
    _, stderr = process.communicate(timeout=60)  # it waited for 5 minutes
    assert process.returncode == 1 and len(stderr.splitlines()) == 1, stderr.decode()
    assert stderr.startswith(b"error: a checkpoint in ") and b"File too large" in stderr and b"zarr" not in stderr
    checkpoints = Checkpoints(tmp_path / "c", keep=None)
    shape = jax.ShapeDtypeStruct((3600,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    state = checkpoints.restore({f"a{i}": shape for i in range(20)})
    assert checkpoints.latest_step() == 1 and all(abs(array[1] - 0.8414710) < 1e-6 for array in state.values())
    checkpoints.close()


def test_errors_of_tensorstore_that_nobody_awaits_are_not_printed(caplog):
    """Their traceback has no line of Orbax. Whether Python prints them depends on the order of the writes."""
    _print_errors_of_orbax_once()
    of_save = ValueError("OUT_OF_RANGE: Error writing local file: File too large [os_error_code='27']")
    for error in (of_save, ValueError("of another library")):
        logging.getLogger("asyncio").error("Future exception was never retrieved", exc_info=error)
    assert [record.exc_info[1].args for record in caplog.records] == [("of another library",)]
