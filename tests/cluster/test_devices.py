"""The chip of each jax.Device.device_kind, JAX without an accelerator, and the compilation cache."""

import os
import subprocess
import sys

import jax
import pytest

from cluster.devices import CHIPS, chip_of, has_tpu, use_compilation_cache, why_no_cuda
from tests.train.subprocesses import ROOT


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_chips_by_device_kind(kind, name):
    assert chip_of(kind) == CHIPS[name]


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 PCIe", "NVIDIA L40S"])
def test_unknown_chips_have_no_peak(kind):
    """They would otherwise have the peak of a chip whose name is a part of theirs."""
    assert chip_of(kind) is None


def test_the_warning_names_what_is_wrong_with_cuda():
    if jax.default_backend() == "gpu":
        pytest.skip("JAX uses the GPU")
    assert f"pip install 'jax[cuda12]=={jax.__version__}'" in why_no_cuda()


PROGRAM = """
import jax
from command.flags import run_command
run_command(lambda: print(jax.config.jax_platforms, jax.devices()[0].platform))
"""


@pytest.mark.skipif(has_tpu(), reason="this machine has a TPU")
def test_libtpu_without_a_tpu_is_not_started(tmp_path):
    """libtpu is a package of this test, whose library would be an error."""
    (tmp_path / "libtpu").mkdir()
    source = f"def get_library_path():\n    return {str(tmp_path / 'no_library.so')!r}\n"
    (tmp_path / "libtpu" / "__init__.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment |= {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu cpu\n", "")


@pytest.fixture
def config():
    """JAX's config without a cache, which is restored after the test."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_compilation_cache_max_size")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_cache_has_a_folder_of_this_processor_and_a_bound(config, tmp_path):
    pytest.importorskip("filelock")  # without which JAX refuses the bound
    use_compilation_cache(str(tmp_path / "new"))
    [folder] = (tmp_path / "new").iterdir()
    assert config.jax_compilation_cache_dir == str(folder) and config.jax_compilation_cache_max_size == 10 * 2**30


def test_a_folder_or_no_cache_by_environment_stays(config, tmp_path):
    config.update("jax_compilation_cache_dir", "/chosen")
    use_compilation_cache(str(tmp_path / "new"))
    assert config.jax_compilation_cache_dir == "/chosen"
    config.update("jax_compilation_cache_dir", None)
    config.update("jax_enable_compilation_cache", False)
    use_compilation_cache(str(tmp_path / "new"))
    assert config.jax_compilation_cache_dir is None and not (tmp_path / "new").exists()
