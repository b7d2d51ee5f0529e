"""pyproject.toml's filters: what JAX and its libraries deprecate fails the suite, and other deprecations do not."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# A file of tests, which is named like one of ours: tests.test_probe.
PROBE = """
    import warnings
    import optax
    import pytest


    def deprecated(message, category, module):  # attributed to `module`, as with a stacklevel
        warnings.warn_explicit(message, category, "file.py", 1, module=module)


    def test_fails_a_deprecated_call_with_the_stacklevel_of_the_library():
        optax.global_norm({"a": 1.0})


    def test_fails_a_deprecated_call_with_the_stacklevel_of_the_caller():
        warnings.warn("use another", DeprecationWarning, stacklevel=1)


    @pytest.mark.parametrize("module", ["jax", "jax._src.core", "flax.nnx", "orbax.export", "grain", "run.step"])
    @pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
    def test_fails_by_module(module, category):
        deprecated("use another", category, module)


    def test_fails_by_message():
        deprecated("The name jax.tree_map is deprecated", DeprecationWarning, "functools")


    @pytest.mark.parametrize("module", ["transformers.utils", "jaxtyping", "tensorflow_datasets.core", "training"])
    def test_passes_others(module):
        deprecated("use another", DeprecationWarning, module)
        deprecated("use another", FutureWarning, module)


    def test_passes_other_warnings():
        warnings.warn("look here", UserWarning)
"""


@pytest.mark.slow
def test_the_filters(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "test_probe.py").write_text(textwrap.dedent(PROBE))
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n", "0", "-rA"]
    done = subprocess.run([*command, "tests"], cwd=tmp_path, capture_output=True, text=True)
    results = [line for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    assert len(results) == 2 + 18 + 1 + 4 + 1, done.stdout + done.stderr
    for line in results:
        assert line.startswith("FAILED ") == ("::test_fails" in line), line
