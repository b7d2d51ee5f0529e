"""What a run records of classes outside this repository, and how installed packages name objectives."""

import dataclasses
import hashlib
import importlib.metadata
import sys
import types

import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.outside import check_code, code_digests, code_flag, code_of, find_objective
from learners import LEARNERS
from learners.learner import TokenPredictionLearner
from objectives import CLM, OBJECTIVES, PrefixLM
from tests.small_fields import small_config
from tests.train.tiny_experiments import tiny_experiment


@pytest.fixture
def register(monkeypatch, tmp_path):
    """(name, class) -> the class in its table, as of a module whose file is returned."""

    def register(table, name, cls, contents="# a class"):
        file = tmp_path / f"{cls.__name__}.py"
        file.write_text(contents)
        module = types.ModuleType(cls.__name__)
        module.__file__, cls.__module__ = str(file), cls.__name__
        setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, cls.__name__, module)
        monkeypatch.setitem(table, name, cls)
        return file

    return register


def of_a_mixture():
    rows = {name: {"name": name, "weight": 1.0, "mode": ""} for name in ("mine", "clm")}
    objective = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": rows}
    return make_experiment(small_config("clm", "decoder_only", data__documents="join", objective=objective))


def code(experiment):
    return code_of(experiment.learner, experiment.denoisers).get("code")


def test_a_run_of_this_repository_records_nothing():
    assert code(tiny_experiment("clm", "decoder_only")) is None
    check_code(None, "config.json")
    with pytest.raises(
        ConfigError, match=r"^config.json: config field code.objectives is missing$"
    ):  # no run has an empty section
        check_code({}, "config.json")


def test_a_row_of_a_mixture_and_a_learner_are_recorded(register):
    mine = dataclasses.dataclass(frozen=True)(type("Mine", (CLM,), {}))
    file = register(OBJECTIVES, "mine", mine, "mine = 1")
    origin = {"file": str(file), "sha256": hashlib.sha256(b"mine = 1").hexdigest()}
    assert code(of_a_mixture()) == {"objectives": {"mine": origin}, "learners": {}}
    learner = dataclasses.dataclass(frozen=True)(type("Scaled", (TokenPredictionLearner,), {}))
    of_learner = register(LEARNERS, "scaled", learner)
    mine.learner = "scaled"
    found = code(make_experiment(small_config("clm", "decoder_only", objective={"name": "mine"})))
    assert found["objectives"] == {"mine": origin} and found["learners"]["scaled"]["file"] == str(of_learner)
    check_code(found, "config.json")
    of_learner.write_text("# another class")
    with pytest.raises(ConfigError, match=r"^config.json: the learner 'scaled' of .*Scaled.py .* is not the one that"):
        check_code(found, "config.json")
    del LEARNERS["scaled"]
    with pytest.raises(
        ConfigError, match=r"^config.json: the learner 'scaled' is not of this repository: the run has it"
    ):
        check_code(found, "config.json")
    LEARNERS["scaled"] = learner


def test_the_digests_of_an_objective_and_a_learner_of_one_name_are_two():
    code = {"objectives": {"mine": {"file": "a", "sha256": "1"}}, "learners": {"mine": {"file": "b", "sha256": "2"}}}
    assert code_digests([{"code": code}, {}]) == {"code of objectives.mine": "1", "code of learners.mine": "2"}


def test_the_flag_with_which_a_command_reads_a_run(register, monkeypatch):
    def flag(experiment):
        return code_flag(experiment.learner, experiment.denoisers)

    assert flag(tiny_experiment("clm", "decoder_only")) == ""
    mine = dataclasses.dataclass(frozen=True)(type("Mine", (CLM,), {}))
    file = register(OBJECTIVES, "mine", mine)
    assert flag(of_a_mixture()) == f" --code={file}"
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda **which: ["entry"] * (which["name"] == "mine"))
        assert flag(of_a_mixture()) == ""
    register(LEARNERS, "scaled", dataclasses.dataclass(frozen=True)(type("Scaled", (TokenPredictionLearner,), {})))
    mine.learner = "scaled"
    experiment = make_experiment(small_config("clm", "decoder_only", objective={"name": "mine"}))
    assert flag(experiment) == " --code=..."  # a file that imports both


def test_an_objective_that_replaces_one_of_ours_is_recorded_and_ours_is_not_taken_for_it(monkeypatch, register):
    ours = OBJECTIVES["prefix_lm"]
    register(OBJECTIVES, "prefix_lm", dataclasses.dataclass(frozen=True)(type("Own", (PrefixLM,), {})))
    found = code(tiny_experiment("prefix_lm", "decoder_only"))
    monkeypatch.setitem(OBJECTIVES, "prefix_lm", ours)
    with pytest.raises(ConfigError, match=r"^config.json: the objective 'prefix_lm' is not of this repository"):
        check_code(found, "config.json")


def test_a_class_without_a_file_is_recorded_and_not_compared(monkeypatch, register):
    register(OBJECTIVES, "mine", dataclasses.dataclass(frozen=True)(type("Mine", (CLM,), {})))
    monkeypatch.delattr(sys.modules["Mine"], "__file__")  # a notebook
    found = code(of_a_mixture())
    assert found["objectives"] == {"mine": {"file": "", "sha256": ""}}
    check_code(found, "config.json")
    monkeypatch.delitem(OBJECTIVES, "mine")
    with pytest.raises(ConfigError, match=r"a Python session registered it, so register it before this run is opened$"):
        check_code(found, "config.json")


ENTRY_POINTS = {
    "missing": ("no_such_module:X", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    "another class": ("objectives.objective:RowShape", "is no subclass of objectives.objective.Objective"),
    "no class": ("objectives:denoisers_of", "is no subclass of objectives.objective.Objective"),
}


@pytest.mark.parametrize("case", ENTRY_POINTS)
def test_an_entry_point_that_is_no_objective_is_one_line(monkeypatch, case):
    value, message = ENTRY_POINTS[case]
    entry = importlib.metadata.EntryPoint("mine", value, "cloze.objectives")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError) as error:
        find_objective("mine")
    assert str(error.value) == f"the entry point 'mine' of cloze.objectives, {value}, {message}"
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry, entry])
    with pytest.raises(ConfigError, match="is of several installed packages: remove all but one of them"):
        find_objective("mine")


def test_names_that_are_not_known_are_refused_as_before():
    for name in ("unknown", None, 5, []):
        with pytest.raises(ConfigError, match=r"^objective.name=.* must be one of 'any_order', 'bart', "):
            make_experiment(small_config("clm", "decoder_only", objective={"name": name}))
