"""docs/examples/own_objective, an objective outside the clone: the guide's commands, and what a run records of it."""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import cloze
from command.flags import execute_file
from configs.studies.base import stage, variant
from contract.errors import ConfigError
from evaluation.__main__ import main as evaluate
from experiment.experiment import make_experiment
from generate.__main__ import main as generate
from huggingface.export import main as export
from objectives import CLM, OBJECTIVES
from show.__main__ import main as show
from studies.jobs import do_job
from studies.plan import Job
from studies.planning import make_plan
from studies.results import StudyFolder
from tests.in_process import run_here
from tests.objectives.helpers import vocab
from tests.studies.studies import small_study
from tests.table import small_config
from tests.test_table import assert_no_prediction_depends_on_its_token
from tests.train.subprocesses import ROOT
from train.main import main as train

EXAMPLE = ROOT / "docs" / "examples" / "own_objective"
GUIDE = (ROOT / "docs" / "adding_an_objective.md").read_text()
TRAIN, *READ = re.findall(r"^    (python .*repeat_text.*)$", GUIDE, re.MULTILINE)
SMALL = (
    "model.num_layers=1",
    "model.d_model=32",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.head_dim=16",
    "model.d_ff=48",
    "data.inputs_length=40",
    "data.source=text",
    "train.steps=2",
    "train.batch_size=4",
    "train.eval_windows=8",
    "optimizer.warmup_steps=1",
    "train.checkpoint_every=2",
    "train.trackers=()",
)


def run_in(folder: pathlib.Path, command: str, *flags: str) -> subprocess.CompletedProcess:
    """Runs a command of the guide in the example's folder, with the clone on the path as an installed one is."""
    words = [sys.executable, *shlex.split(command)[1:], *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def flags(corpus):
    """The fields that make the guide's run small."""
    data = [f"data.path={corpus / 'text'}", f"data.cache_dir={corpus / 'cache'}"]
    return [f"--config.{field}" for field in (*SMALL, *data)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, flags):
    """A copy of the example, in which the guide's first command has trained a run."""
    folder = tmp_path_factory.mktemp("own") / "own_objective"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    done = run_in(folder, TRAIN, *flags)
    assert done.returncode == 0, done.stderr
    assert f"train.generate --workdir=runs/repeat_text --code={folder / 'repeat_text.py'} --prompt=" in done.stdout
    return folder


@pytest.fixture(autouse=True)
def only_this_test():
    """Removes what a test registered."""
    yield
    OBJECTIVES.pop("repeat_text", None)
    for name in ("repeat_text", "_executed_repeat_text"):
        sys.modules.pop(name, None)


def run_of(folder):
    return folder / "runs" / "repeat_text"


@pytest.mark.slow
def test_the_guides_commands_read_the_run(folder):
    evaluated, generated = (run_in(folder, command) for command in READ)
    assert evaluated.returncode == generated.returncode == 0, evaluated.stderr + generated.stderr
    assert np.isfinite(json.loads(evaluated.stdout)["loss/repeat_text"]) and generated.stdout.startswith("import ")


def test_the_run_records_the_file_and_its_digest_and_nothing_of_this_repository(folder):
    recorded = json.loads((run_of(folder) / "config.json").read_text())["code"]
    [(name, origin)] = recorded["objectives"].items()
    assert name == "repeat_text" and recorded["learners"] == {}
    assert origin["file"] == str(folder / "repeat_text.py") and len(origin["sha256"]) == 64


COMMANDS = {
    "evaluate": (evaluate, []),
    "generate": (generate, ["--prompt=a", "--max_tokens=2"]),
    "export": (export, ["--out={out}"]),
    "show": (show, ["--num_examples=1"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_executes_no_file_that_it_was_not_given(folder, tmp_path, command):
    main, arguments = COMMANDS[command]
    arguments = [f"--workdir={run_of(folder)}", *(each.format(out=tmp_path / "out") for each in arguments)]
    status, _, error = run_here(main, *arguments)
    file = folder / "repeat_text.py"
    assert status == 1 and error.count("\n") == 1 and "repeat_text" not in OBJECTIVES
    assert f"the objective 'repeat_text' is not of this repository: the run has it from {file}: read that" in error
    assert f"add --code={file}, which executes it" in error
    status, _, error = run_here(main, *arguments, f"--code={file}")
    assert status == 0, error


def test_python_code_imports_the_file_before_it_loads_the_run(folder, monkeypatch):
    with pytest.raises(ConfigError, match=r"is not of this repository: .*; in Python, import it first$"):
        cloze.load(run_of(folder))
    monkeypatch.syspath_prepend(folder)
    import repeat_text  # noqa: F401

    losses = cloze.load(run_of(folder)).losses("import os")
    assert losses.tokens == 2 * len("import os")


def test_an_installed_package_needs_no_flag(folder, tmp_path, monkeypatch):
    package = tmp_path / "repeat_text-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: repeat-text\nVersion: 1.0\n")
    [(group, entry)] = re.findall(r'entry-points\."(.*)"\]\n(.*)\n', (folder / "pyproject.toml").read_text())
    (package / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    shutil.copy(folder / "repeat_text.py", tmp_path)  # another folder, and equal contents
    monkeypatch.syspath_prepend(tmp_path)
    status, out, error = run_here(evaluate, f"--workdir={run_of(folder)}")
    assert status == 0 and json.loads(out)["step"] == 2, error
    config = small_config("clm", "decoder_only", data__documents="join", objective={"name": "repeat_text"})
    assert make_experiment(config).objective_name == "repeat_text"
    mixture = {"name": "mixture", "mix_by": "example", "schedule": "constant"}
    mixture["denoisers"] = {"a": {"name": "repeat_text", "weight": 1.0, "mode": ""}}
    OBJECTIVES.pop("repeat_text")
    assert make_experiment(config | {"objective": mixture}).denoiser_names == ("a",)


def test_a_file_that_has_changed_is_refused_by_readers_and_by_the_run_that_continues(folder, tmp_path, flags):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with open(copy / "repeat_text.py", "a") as file:
        file.write("# changed\n")
    message = (
        rf"the objective 'repeat_text' of {copy}/repeat_text.py \(SHA-256 [0-9a-f]{{12}}\) is not the one that trained "
        rf"the run, of {folder}/repeat_text.py \([0-9a-f]{{12}}\): restore that file as it was, or train again\n$"
    )
    status, _, error = run_here(evaluate, f"--workdir={run_of(folder)}", f"--code={copy / 'repeat_text.py'}")
    assert status == 1 and re.search(message, error), error
    longer = [flag.replace("train.steps=2", "train.steps=3") for flag in flags]
    before = (run_of(copy) / "config.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(copy)
        status, _, error = run_here(train, f"--config={copy / 'config.py'}", *longer, f"--workdir={run_of(copy)}")
    assert status == 1 and re.search(message, error) and (run_of(copy) / "config.json").read_bytes() == before


def test_a_file_that_is_missing_is_named(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run_of(folder), copy)
    config = json.loads((copy / "config.json").read_text())
    config["code"]["objectives"]["repeat_text"]["file"] = "/lost/repeat_text.py"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"from /lost/repeat_text.py, which is not on this machine: restore it"):
        cloze.load(copy)
    config["code"] = {"objectives": {"repeat_text": {"file": 5, "sha256": ""}}, "learners": {}}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"code.objectives.repeat_text.file=5 must be of type str, not int"):
        cloze.load(copy)


@pytest.mark.slow
def test_the_process_of_a_studys_job_registers_what_its_config_does(folder, corpus, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    study, out = small_study(corpus, config=str(folder / "config.py"), seeds=1), StudyFolder(tmp_path / "study")
    plan = make_plan(study, {})
    begun = variant(start=stage(str(folder / "config.py"), 0.5))  # whose start alone has code from outside
    names = {"slow": variant(config="configs/clm.py"), "fast": begun}
    of_start = make_plan(small_study(corpus, config="configs/clm.py", baseline="slow", variants=names), {})
    assert [of_start.runs[name].code.keys() for name in names] == [set(), {"code of objectives.repeat_text"}]
    out.begin(plan, {}, mixed_code=False)
    for name in ("repeat_text", "config_config"):  # as in a new process
        sys.modules.pop(name)
    del OBJECTIVES["repeat_text"]
    assert do_job(Job("slow", 0), plan, out) and np.isfinite(out.outcome(Job("slow", 0), plan).values["loss"])
    outcome = out.outcome(Job("slow", 0), plan)
    name = "code of objectives.repeat_text"
    assert outcome.environment[name] == plan.runs["slow"].code[name]
    plan.runs["slow"].code[name] = "ab"  # the file has changed
    assert f"the {name} has changed since" in out.outcome(Job("slow", 0), plan).reason


# The leak test: the second copy of a token is predicted from the first one, which an objective must declare.


def experiment_of(cls, architecture="decoder_only"):
    OBJECTIVES["repeat_text"] = cls
    fields = {"objective": {"name": "repeat_text"}, "data__documents": "join", "data__inputs_length": 24}
    return make_experiment(small_config("clm", architecture, **fields, data__targets_length=24))


@pytest.fixture
def repeat_text():
    return execute_file(str(EXAMPLE / "repeat_text.py"), "--code").RepeatText


def test_the_targets_are_the_text_twice(repeat_text):
    tokens = np.array([[5, 6, 7], [8, 9, 0]], np.int32)
    examples = repeat_text().corrupt(tokens, np.array([3, 2]), np.zeros(2, np.uint64), vocab())
    rows = [row[:n].tolist() for row, n in zip(*examples.targets, strict=True)]
    assert rows == [[5, 6, 7, 5, 6, 7], [8, 9, 8, 9]] and not examples.inputs.lengths.any()
    assert repeat_text().restore(None, np.array(rows[1]), vocab()).tolist() == [8, 9]


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_an_objective_that_declares_its_copies_has_no_leak(repeat_text, architecture):
    assert_no_prediction_depends_on_its_token(experiment_of(repeat_text, architecture))


def test_a_copy_that_is_not_declared_is_a_leak_and_a_declaration_without_a_copy_is_refused(repeat_text):
    undeclared = dataclasses.dataclass(frozen=True)(type("Undeclared", (repeat_text,), {"repeats_targets": False}))
    with pytest.raises(AssertionError, match="repeat_text: raw token, position"):
        assert_no_prediction_depends_on_its_token(experiment_of(undeclared))
    needless = dataclasses.dataclass(frozen=True)(type("Needless", (CLM,), {"repeats_targets": True}))
    with pytest.raises(AssertionError, match="no prediction reads a copy, so repeats_targets must be False"):
        assert_no_prediction_depends_on_its_token(experiment_of(needless))
