"""Shared: one small corpus of real text, and a JAX that stays on the CPU and compiles quickly."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tiny programs run once: compiling them is what takes time, and what differs between two tests is seldom the program.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="cloze-compiled-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import pathlib

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> pathlib.Path:
    """A folder with `text`, 30 modules of the standard library, and room for a token store in `cache`."""
    import sysconfig

    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text").mkdir()
    modules = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:30]
    for module in modules:
        (folder / "text" / f"{module.stem}.txt").write_bytes(module.read_bytes())
    return folder
