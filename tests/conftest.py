"""A small corpus for all tests, and JAX on the CPU with quick compilation."""

import atexit
import gc
import importlib.metadata
import os
import pathlib
import shutil
import tempfile

import pytest

# One thread for NumPy, SciPy and PyTorch: the arrays of tests are tiny, and the threads of two workers would wait for
# each other on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests run each tiny program once, so compilation takes most of their time, and many tests compile the same programs.
# The processes that tests start have these settings too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers of pytest-xdist inherit it
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED = tempfile.mkdtemp(prefix="cloze-compiled-")
    _OWNER = os.getpid()
    atexit.register(lambda: os.getpid() == _OWNER and shutil.rmtree(_COMPILED, ignore_errors=True))  # not when forked
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # no source lines of operations: 5% less time
# XLA's older emitters of CPU code (0.10) compile in half the time, and its preset for quick compilation (0.12) takes a
# sixth off the tests of models. Only for the versions that were tried, because XLA ends a process with a flag that it
# does not know. Flags of the user come last, and so take precedence. QUICK_COMPILATION=0: programs are compiled as
# users compile them.
_QUICK = {
    "0.10": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    "0.12": "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE",
}.get(importlib.metadata.version("jaxlib")[:4], "")
if os.environ.get("QUICK_COMPILATION") != "0" and _QUICK not in os.environ.get("XLA_FLAGS", ""):  # workers inherit it
    os.environ["XLA_FLAGS"] = f"{_QUICK} {os.environ.get('XLA_FLAGS', '')}".strip()

# The files that take longest, the longest first: the workers of pytest-xdist take files in this order (with
# --no-loadscope-reorder, in pyproject.toml), so that none begins a long file when the others end.
LONG_FILES = (
    "tests/run/test_devices.py",
    "tests/train/test_three_corpora.py",
    "tests/test_torture.py",
    "tests/test_table.py",
    "tests/plan/test_presets.py",
    "tests/cluster/test_processes.py",
    "tests/studies/test_jobs.py",
    "tests/learners/test_distillation.py",
    "tests/test_first_hour.py",
    "tests/models/test_complete_p.py",
    "tests/workdir/test_bucket_workdir.py",
    "tests/run/test_sharded_attention.py",
    "tests/examples/test_colab.py",
    "tests/train/test_resume.py",
    "tests/train/test_distillation.py",
    "tests/cluster/test_verification.py",
    "tests/studies/test_shipped_studies.py",
    "tests/plan/test_memory_choice.py",
    "tests/plan/test_plan.py",
    "tests/train/test_multitask.py",
    "tests/huggingface/test_convert.py",
    "tests/evaluation/test_cross_evaluate.py",
    "tests/evaluation/probes/test_command.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of LONG_FILES first."""
    rank = {name: i for i, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


def pytest_collection_finish() -> None:
    """Excludes the modules and tests of the session from garbage collections, each of which would visit them all.

    Collections are rarer than Python's default of 700 new objects, since the traces of JAX make millions.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> pathlib.Path:
    """A folder with small corpora; tests keep token stores in its folder cache/.

    text/: 30 modules of the standard library. pairs.jsonl: 60 prompts and responses, together at most 39 bytes.
    labelled.jsonl: 60 texts of the classes "a" and "b".
    """
    import json
    import sysconfig

    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text").mkdir()
    modules = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:30]
    for module in modules:
        (folder / "text" / f"{module.stem}.txt").write_bytes(module.read_bytes())
    lines = [line for module in modules[:8] for line in module.read_text(encoding="utf-8").split("\n")]
    short = sorted({line for line in lines if line.isascii() and len(line.strip()) >= 12 and len(line) < 40})[:60]
    pairs = [{"prompt": line[:k], "response": line[k:]} for k, line in zip([3, 7] * 30, short, strict=True)]
    labelled = [{"text": "\n".join(lines[20 * k : 20 * (k + 1)]), "label": "ab"[k % 2]} for k in range(60)]
    for name, documents in {"pairs.jsonl": pairs, "labelled.jsonl": labelled}.items():
        (folder / name).write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def buckets():
    """The variables of the environment with which processes reach s3://test-bucket. See tests/buckets.py."""
    pytest.importorskip("moto")
    from tests.buckets import buckets_on_this_machine

    with buckets_on_this_machine() as environment:
        yield environment


@pytest.fixture(params=["s3", "gs"])
def bucket(request, buckets) -> str:
    """The address of a folder without files, in a bucket of each scheme. Other processes reach s3:// alone."""
    import uuid

    return f"{request.param}://test-bucket/{uuid.uuid4().hex}"


# What the run of `trained_run` trains on each architecture.
TRAINED = {"encoder_decoder": "ul2", "decoder_only": "clm", "encoder_only": "mlm"}


@pytest.fixture(scope="session")
def trained_run(corpus, tmp_path_factory):
    """architecture -> the folder of a run of 4 steps of tests/small_fields.py's model, with checkpoints of 2 and 4.

    Tests may read it, and change copies only. It evaluates at steps 2 and 4.
    """
    import functools
    import io

    @functools.cache
    def trained_run(architecture: str) -> pathlib.Path:
        from rich.console import Console

        from experiment.experiment import make_experiment
        from tests.table import reads_corpus, small_config
        from train.loop import train_and_evaluate

        name = TRAINED[architecture]
        fields = {"train__steps": 4, "train__checkpoint_every": 2, "train__trackers": ()} | reads_corpus(name, corpus)
        workdir = tmp_path_factory.mktemp(architecture) / "run"
        console = Console(file=io.StringIO(), width=1000)
        train_and_evaluate(make_experiment(small_config(name, architecture, **fields)), str(workdir), console=console)
        return workdir

    return trained_run
