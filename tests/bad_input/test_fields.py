"""Every field of a config refuses every kind of bad value, in one line that names the field."""

import dataclasses
import functools
import importlib
import typing

import pytest
from absl import flags

from command.flags import config_fields, define_config, parse_flags
from configs import base, multitask
from data.sources.config import CorpusConfig, SourceConfig
from data.sources.filters import FilterConfig
from docs.site.fields import DERIVED
from experiment.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
)
from experiment.experiment import make_experiment
from experiment.objective import LinearMixtureFields, LinearRowFields
from learners.learner import LossConfig
from models.config import ModelConfig
from objectives import OBJECTIVES, Mixture
from tests.bad_input.answers import check_rows, row, wrong_answer
from tests.bad_input.fields import bad_values, hints_of, with_field
from workdir.run_config import flatten

SECTIONS = {
    "": hints_of(ExperimentConfig, "", ("data", "objective", "model", "loss", "optimizer", "train", "mesh")),
    "data": hints_of(DataConfig, "data", ("sources", "filters")),
    "data.filters": hints_of(FilterConfig, "data.filters"),
    "model": hints_of(ModelConfig, "model", DERIVED),
    "loss": hints_of(LossConfig, "loss"),
    "optimizer": hints_of(OptimizerConfig, "optimizer"),
    "train": hints_of(TrainConfig, "train"),
    "mesh": hints_of(MeshConfig, "mesh"),
}
# A config of each objective; where one has no preset of its own, a row of UL2's table is that objective.
CONFIG_OF = {"unilm": "unilm:left_to_right"}


def config_of(objective):
    name, _, preset = CONFIG_OF.get(objective, objective).partition(":")
    config = importlib.import_module(f"configs.{name}").get_config(preset or "tiny").to_dict()
    assert config["objective"]["name"] == objective
    return config


def rows_of(config, hints):
    """A row for every kind of bad value of every field."""
    for name, hint in hints.items():
        for kind, value in bad_values(hint):
            changed = with_field(config, name, value)
            yield row(f"{name}: {kind}", lambda changed=changed: make_experiment(changed), names=name)


def test_the_declarations_have_every_field_of_the_config():
    declared = {name for hints in SECTIONS.values() for name in hints}
    assert declared == {name for name in flatten(base.get_config().to_dict()) if not name.startswith("objective")}
    parts = {part for name in declared for part in name.split(".")}
    assert {field.name for field in dataclasses.fields(CorpusConfig)} <= parts


def test_fields_of_a_corpus(monkeypatch):
    config = multitask.get_config().to_dict()
    check_rows(rows_of(config, hints_of(SourceConfig, "data.sources.text")), monkeypatch)
    check_rows(rows_of(config, {"data.sources": dict[str, SourceConfig]}), monkeypatch)


@pytest.mark.parametrize("section", SECTIONS)
def test_fields_of_a_section(section, monkeypatch):
    check_rows(rows_of(config_of("clm"), SECTIONS[section]), monkeypatch)


@pytest.mark.parametrize("name", [name for name, cls in OBJECTIVES.items() if cls is not Mixture])
def test_fields_of_an_objective(name, monkeypatch):
    hints = hints_of(OBJECTIVES[name], "objective")
    if hints:
        check_rows(rows_of(config_of(name), hints), monkeypatch)


def test_fields_of_a_mixture(monkeypatch):
    config = importlib.import_module("configs.ul2r").get_config("clm_then_ul2r").to_dict()
    rows = config["objective"]["denoisers"]
    denoiser = next(name for name, fields in rows.items() if fields["name"] == "span_corruption")
    where = f"objective.denoisers.{denoiser}"
    hints = hints_of(LinearMixtureFields, "objective") | hints_of(LinearRowFields, where)
    hints |= hints_of(OBJECTIVES["span_corruption"], where)
    check_rows(rows_of(config, hints), monkeypatch)


def test_many_sentinels_are_accepted_without_a_wait(monkeypatch):
    config = with_field(config_of("clm"), "data.num_sentinels", 2**16)
    answer = wrong_answer(row("", lambda: make_experiment(config), names=""), monkeypatch)
    assert answer.startswith("accepted"), answer


def with_section(config, section, fields):
    """A copy of a config in which a section, such as "data.filters", has these fields; "" is the whole config."""
    if not section:
        return fields
    first, _, rest = section.partition(".")
    return config | {first: with_section(config[first], rest, fields)}


@pytest.mark.parametrize("value", [None, 5, "text", [], ["a"]])
def test_a_section_that_is_no_group_of_fields(value, monkeypatch):
    config = config_of("clm")
    sections = [name for name in SECTIONS if name] + ["objective"]
    changed = {name: with_section(config, name, value) for name in sections}
    check_rows(
        (row(name, lambda name=name: make_experiment(changed[name]), names=name) for name in sections), monkeypatch
    )


def test_missing_and_unknown_fields(monkeypatch):
    config, rows = config_of("clm"), []
    for name in flatten(config):
        section, _, field = name.rpartition(".")
        group = functools.reduce(dict.__getitem__, section.split(".") if section else (), config)
        without = {key: value for key, value in group.items() if key != field}
        for case, fields in {"missing": without, "unknown": without | {field + "x": 1}}.items():
            changed = with_section(config, section, fields)
            rows.append(row(f"{name}: {case}", lambda changed=changed: make_experiment(changed), names=name))
    check_rows(rows, monkeypatch)


def _parse(config="configs/clm.py"):
    """A `main` that parses --config and its overrides, and makes the experiment."""

    def main():
        values = flags.FlagValues()
        define_config(values)
        parse_flags(values, "Usage.")
        make_experiment(config_fields(values))

    return main


def test_overrides_on_the_command_line(monkeypatch):
    config, rows = ["--config=configs/clm.py"], []
    for name, hint in {name: hint for hints in SECTIONS.values() for name, hint in hints.items()}.items():
        plain = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        texts = {int: ["x", "1.5", "nan", ""], float: ["x", "nan", ""], bool: ["2", "x"]}.get(plain, [])
        for text in texts:
            rows.append(row(f"{name}={text!r}", _parse(), *config, f"--config.{name}={text}", names=name))
        if typing.get_origin(plain) is tuple:
            for text in ("('a'", "(", "('a',", "[1]", "(1,)", "(None,)"):
                rows.append(row(f"{name}={text}", _parse(), *config, f"--config.{name}={text}", names=name))
    check_rows(rows, monkeypatch)


@pytest.mark.parametrize("preset", ["tiny,small", "bert,bert", "", ",", "huge", "tiny,", "base,large", "none"])
def test_presets(preset, monkeypatch):
    for config in ("ul2", "mlm"):
        argument = f"--config=configs/{config}.py:{preset}"
        check_rows([row(preset, _parse(), argument, names="preset")], monkeypatch)
