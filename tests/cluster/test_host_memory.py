"""Page faults per step, measured in new processes: glibc's settings must precede JAX's first array."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import jax, jax.numpy as jnp
from train.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
step = jax.jit(lambda x: jax.lax.optimization_barrier(x * 2.0)[::2].sum())  # 64 MiB of scratch memory
x = jnp.ones(1 << 24)
faults = []
for _ in range(40):  # the heap grows over several steps, depending on the threads, until it has room for a whole step
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


def page_faults(how):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}  # also where JAX has an accelerator's plugin
    run = subprocess.run(
        [sys.executable, "-c", FAULTS, how], env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_scratch_memory_is_reused_between_steps():
    assert page_faults("keep") < page_faults("give back") / 4
