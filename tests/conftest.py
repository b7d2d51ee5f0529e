"""Shared: one small corpus of real text, and libraries that stay on the CPU."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

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
