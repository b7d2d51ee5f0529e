"""What JAX starts with where libtpu is installed without a TPU, and the reasons why it does not use an accelerator."""

import os
import re
import subprocess
import sys

import pytest
from jax.experimental import topologies

from cluster.accelerators import has_tpu, why_no_cuda
from contract.errors import ConfigError
from plan import topology
from tests.train.subprocesses import ROOT

PROGRAM = """
import jax
from train.command import run_command
from train.host_memory import keep_freed_memory
run_command(lambda: print(jax.config.jax_platforms, jax.devices()[0].platform, keep_freed_memory()))
"""
LIBRARY = """
import cloze, jax
from tests.small_fields import small_config
cloze.new(small_config("clm", "decoder_only"))
print(jax.config.jax_platforms, jax.devices()[0].platform, bool(jax.config.jax_compilation_cache_dir))
"""


@pytest.mark.skipif(has_tpu(), reason="this machine has a TPU")
@pytest.mark.parametrize(
    ("program", "chosen"), [(PROGRAM, None), (PROGRAM, "cpu"), (LIBRARY, None)], ids=["unset", "cpu", "library"]
)
def test_libtpu_without_a_tpu_is_not_started(program, chosen, tmp_path):
    """libtpu is a package of this test, whose library would be an error."""
    (tmp_path / "libtpu").mkdir()
    source = f"def get_library_path():\n    return {str(tmp_path / 'no_library.so')!r}\n"
    (tmp_path / "libtpu" / "__init__.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment |= {"PYTHONPATH": f"{tmp_path}:{ROOT}"} | ({"JAX_PLATFORMS": chosen} if chosen else {})
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cpu cpu {sys.platform == 'linux'}\n", "")


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ({}, "JAX's CUDA plugin is not installed: pip install 'jax[cuda12]==0.9.2'"),
        (
            {"jax-cuda13-plugin": "0.9.2", "jax-cuda13-pjrt": "0.8.0"},
            "jax-cuda13-pjrt is version 0.8.0 and jaxlib is 0.9.2, which must be equal: pip install 'jax[cuda13]==",
        ),
        ({"jax-cuda12-plugin": "0.9.2", "jax-cuda12-pjrt": "0.9.2"}, "the CUDA plugin does not start (Unknown backend"),
    ],
)
def test_the_warning_names_what_is_wrong_with_cuda(installed, reason):
    assert why_no_cuda({"jax": "0.9.2", "jaxlib": "0.9.2", **installed}).startswith(reason)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            'Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".',
            "which another process uses",
        ),
        ("Unable to find libtpu.so", "needs the TPU compiler: pip install -e '.[tpu]'"),
    ],
)
def test_a_lock_of_libtpu_is_not_answered_by_an_installation(error, answer, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(error)

    monkeypatch.setattr(topologies, "get_topology_desc", fail)
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(ConfigError, match=re.escape(answer)):
        topology.parse_topology("v5e:2x2")
