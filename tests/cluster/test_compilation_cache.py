"""The compilation cache of commands: its folder, its size, and where it is off."""

import os

import jax
import pytest

from cluster.compilation_cache import use_compilation_cache
from tests.train.subprocesses import run_main


@pytest.fixture
def config():
    """JAX's config without a cache, which is restored after the test."""
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")}
    jax.config.update("jax_compilation_cache_dir", None)
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_one_of_this_processor(config, tmp_path):
    use_compilation_cache(str(tmp_path / "new"))
    [folder] = (tmp_path / "new").iterdir()
    assert config.jax_compilation_cache_dir == str(folder)


def test_a_folder_or_no_cache_by_environment_stays(config, tmp_path):
    config.update("jax_compilation_cache_dir", "/chosen")
    use_compilation_cache(str(tmp_path / "new"))
    assert config.jax_compilation_cache_dir == "/chosen"
    config.update("jax_compilation_cache_dir", None)
    config.update("jax_enable_compilation_cache", False)
    use_compilation_cache(str(tmp_path / "new"))
    assert config.jax_compilation_cache_dir is None and not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_not_used(config, tmp_path):
    (tmp_path / "file").write_text("")
    use_compilation_cache(str(tmp_path / "file"))
    assert config.jax_compilation_cache_dir is None


def test_the_oldest_programs_are_deleted(config, tmp_path):
    use_compilation_cache(str(tmp_path))
    [folder] = tmp_path.iterdir()
    for age, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1000 - age, 1000 - age))
    config.update("jax_compilation_cache_dir", None)
    use_compilation_cache(str(tmp_path), most_bytes=250)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


def test_training_uses_it_and_tests_do_not_fill_it(corpus, tmp_path, monkeypatch):
    """The command's folder is in the home folder, unless the environment names one, as for all other tests."""
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]
    arguments = [f"--config.data.path={corpus / 'text'}", f"--config.data.cache_dir={corpus / 'cache'}"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.01")
    status, out, err = run_main(*arguments, f"--workdir={tmp_path / 'run'}")
    assert status == 0 and err == "", out + err
    assert any((tmp_path / ".cache" / "cloze" / "compiled").glob("*/*"))
