"""Configs of earlier versions: missing fields take the values that they declare. Later versions are refused."""

import copy
import dataclasses
import json
import pathlib
import shutil
import typing

import pytest

from configs import ul2
from contract.errors import ConfigError
from docs.site.fields import DERIVED
from experiment.config import ExperimentConfig, TrainConfig
from experiment.experiment import make_experiment
from experiment.objective import field_classes, row_classes
from models.config import ModelConfig
from objectives import OBJECTIVES, Mixture, SpanCorruption
from run.restore import load_experiment
from tests.make_checkpoint_fixture import ROOT, fixture_experiment
from workdir.older_configs import AS_BEFORE, CONFIG_VERSION, fill_missing
from workdir.run_config import check_same_run, flatten, read_config, write_config

FIXTURES = ROOT / "tests" / "fixtures"
# The fields of each version that a release had: version -> file. A release adds one (docs/dependencies.md).
RELEASED = {1: FIXTURES / "fields_v1.json"}


def added_since(version: int) -> dict[str, bool]:
    """The config fields of today that `version` did not have -> whether they declare a value AS_BEFORE."""
    released = json.loads(RELEASED[version].read_text())
    sections = typing.get_type_hints(ExperimentConfig) | {"model": ModelConfig}
    classes = {"": ExperimentConfig} | {name: cls for name, cls in sections.items() if dataclasses.is_dataclass(cls)}
    old = {name: [field for field in released["config"] if field.rpartition(".")[0] == name] for name in classes}
    old[""] += {f"{field.partition('.')[0]}" for field in released["config"] if "." in field} | {"objective"}
    old["model"] += [f"model.{name}" for name in DERIVED]
    for name, objective in OBJECTIVES.items():
        if objective is not Mixture:
            classes[f"objective.{name}"] = objective
            names = released["objectives"].get(name, [field.name for field in dataclasses.fields(objective)])
            old[f"objective.{name}"] = [f"objective.{name}.{field}" for field in names]
    [classes["mixture"]] = field_classes({"name": "mixture", "schedule": "linear"})
    classes["denoisers"] = row_classes({"name": "clm"}, is_linear=True)[-1]
    old |= {name: [f"{name}.{field}" for field in released[name]] for name in ("mixture", "denoisers")}
    return {
        name: AS_BEFORE in field.metadata
        for section, cls in classes.items()
        for field in dataclasses.fields(cls)
        if (name := f"{section}.{field.name}".removeprefix(".")) not in old[section]
    }


@pytest.mark.parametrize("version", RELEASED)
def test_every_field_that_was_added_since_a_release_declares_what_earlier_runs_have(version):
    added = added_since(version)
    without = [name for name, has_value in added.items() if not has_value]
    assert not without, f'declare dataclasses.field(metadata={{"{AS_BEFORE}": ...}}) in the dataclasses of these fields'
    assert not added or version < CONFIG_VERSION, "add 1 to CONFIG_VERSION in workdir/older_configs.py"


def test_the_fields_of_the_first_release_are_those_of_its_run():
    assert added_since(1)["optimizer.cycles"]
    released = json.loads(RELEASED[1].read_text())
    config = json.loads((FIXTURES / "run_v1" / "config.json").read_text())
    assert "version" not in config and "optimizer" in config
    names = [name for name in flatten(config) if not name.startswith(("corpus.", "objective."))]
    assert sorted(names) == released["config"]


def test_a_field_without_a_declared_value_is_noticed(monkeypatch):
    def with_field(cls):
        return dataclasses.make_dataclass(
            cls.__name__, [("extra", int, dataclasses.field(kw_only=True))], bases=(cls,), frozen=True
        )

    monkeypatch.setitem(OBJECTIVES, "span_corruption", with_field(SpanCorruption))
    monkeypatch.setattr("tests.workdir.test_older_configs.ModelConfig", with_field(ModelConfig))
    monkeypatch.setitem(ExperimentConfig.__annotations__, "train", with_field(TrainConfig))
    without = [name for name, has_value in added_since(1).items() if not has_value]
    assert sorted(without) == ["model.extra", "objective.span_corruption.extra", "train.extra"]


def test_a_section_or_objective_that_is_no_dict_is_left_to_the_checks_of_the_config():
    for config in ({}, {"model": None, "objective": [], "data": 3}, {"objective": {"name": []}}):
        assert fill_missing(config) == config
    table = {"objective": {"name": "mixture", "denoisers": {"a": None, "b": {"name": "none"}}}}
    assert fill_missing(table) == table


def with_new_fields(cls, **values):
    """`cls` with the fields of `values`, each declared with its value as before."""
    declarations = [
        (name, type(value), dataclasses.field(kw_only=True, metadata={AS_BEFORE: value}))
        for name, value in values.items()
    ]
    return dataclasses.make_dataclass(cls.__name__, declarations, bases=(cls,), frozen=True)


@pytest.fixture
def newer(monkeypatch):
    """A later version: model.qk_norm, loss.focus, and span corruption's `overlap` are new."""
    model = with_new_fields(ModelConfig, qk_norm=False)
    for module in ("experiment.model", "workdir.older_configs"):
        monkeypatch.setattr(f"{module}.ModelConfig", model)
    loss = with_new_fields(ExperimentConfig.__annotations__["loss"], focus=0.0)
    monkeypatch.setitem(ExperimentConfig.__annotations__, "loss", loss)
    monkeypatch.setitem(OBJECTIVES, "span_corruption", with_new_fields(SpanCorruption, overlap=1))


@pytest.fixture
def released_run(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(ROOT)
    return pathlib.Path(shutil.copytree(FIXTURES / "run_v1", tmp_path / "run"))


def test_a_run_of_a_release_is_read_and_continued_with_fields_that_it_lacks(newer, released_run, tmp_path):
    experiment = load_experiment(str(released_run))
    assert experiment.model.qk_norm is False
    assert experiment.config["loss"]["focus"] == 0.0 and experiment.optimizer.cycles == ""
    saved, config = read_config(released_run), copy.deepcopy(read_config(released_run))
    config["train"]["steps"] = 4
    assert check_same_run(saved, config) == ["train.steps: 2 -> 4"]
    config["model"]["qk_norm"] = True
    with pytest.raises(ConfigError, match=r"model\.qk_norm: false -> true"):
        check_same_run(saved, config)
    with pytest.raises(ConfigError, match=r"^config field \w+\.\w+ is missing$"):  # a user's config is not filled
        fixture_experiment(4, str(tmp_path))


def test_each_denoiser_of_a_mixture_has_the_new_fields_of_its_objective(tmp_path, request):
    config = ul2.get_config("tiny").to_dict()
    write_config(tmp_path, config)
    request.getfixturevalue("newer")
    with pytest.raises(ConfigError, match="is missing"):
        make_experiment(config)
    denoisers = read_config(tmp_path)["objective"]["denoisers"]
    spans = [row for row in denoisers.values() if row["name"] == "span_corruption"]
    assert spans and all(row["overlap"] == 1 for row in spans)
    assert all("overlap" not in row for row in denoisers.values() if row["name"] != "span_corruption")
    experiment = load_experiment(str(tmp_path))
    assert {d.objective.overlap for d in experiment.denoisers if hasattr(d.objective, "overlap")} == {1}


def test_a_config_has_its_version_and_a_later_one_is_refused(tmp_path):
    write_config(tmp_path, {"seed": 0})
    path = tmp_path / "config.json"
    assert json.loads(path.read_text()) == {"version": CONFIG_VERSION, "seed": 0}
    assert read_config(tmp_path) == {"seed": 0}
    for version, message in (
        (
            CONFIG_VERSION + 1,
            rf"config\.json has version {CONFIG_VERSION + 1}, .* reads versions up to {CONFIG_VERSION}: ",
        ),
        ("2", r"config\.json cannot be read: its version '2' is no version of this project"),
    ):
        path.write_text(json.dumps({"version": version, "seed": 0}))
        with pytest.raises(ConfigError, match=message) as error:
            read_config(tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["null", "[]", "3"])
def test_a_config_without_fields_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json is damaged: it has no fields"):
        read_config(tmp_path)
