"""Exports for several test files."""

import functools

import pytest

from tests.huggingface.exported_runs import RUNS, run_export, text_fields
from tests.table import small_config
from tests.train.small_runs import save_random_run


@pytest.fixture(scope="module")
def exported(corpus, tmp_path_factory):
    """name of RUNS -> the folder of a run with random parameters, and that of its export."""

    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp(name)
        config, architecture, overrides = RUNS[name]
        save_random_run(small_config(config, architecture, **text_fields(corpus), **overrides), str(folder / "run"))
        run_export(f"--workdir={folder / 'run'}", f"--out={folder / 'out'}")
        return folder / "run", folder / "out"

    return make
