"""The toy objective that docs/adding_an_objective.md prints passes the tests of every objective."""

import inspect
import pathlib
import re
import sys
import types

import pytest

import objectives
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from tests import test_table

GUIDE = (pathlib.Path(__file__).parent.parent / "docs" / "adding_an_objective.md").read_text()
FILES = dict(re.findall(r"`(\w+/\w+\.py)`\n\n```python\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture(scope="module")
def toy():
    """The modules of the guide's two files by name, with the toy objective in the table of objectives."""
    modules = {}
    for path, source in FILES.items():
        name = path.removesuffix(".py").replace("/", ".")
        modules[name] = sys.modules[name] = types.ModuleType(name)
        exec(compile(source, path, "exec"), modules[name].__dict__)
    objectives.OBJECTIVES["every_nth"] = modules["objectives.every_nth"].EveryNth
    yield modules
    del objectives.OBJECTIVES["every_nth"]
    for name in modules:
        del sys.modules[name]


def test_the_guide_prints_two_files(toy):
    assert list(FILES) == ["objectives/every_nth.py", "configs/every_nth.py"]


def is_of_every_objective(test) -> bool:
    return inspect.isfunction(test) and list(inspect.signature(test).parameters) == ["objective"]


@pytest.mark.parametrize(
    "test",
    [name for name, test in vars(test_table).items() if name.startswith("test_") and is_of_every_objective(test)],
)
def test_the_toy_objective_passes_the_tests_of_every_objective(toy, test):
    getattr(test_table, test)(objective=toy["objectives.every_nth"].EveryNth(4))


def test_the_toy_config_is_valid_on_both_architectures(toy):
    for preset in ("xxl", "tiny"):
        config = toy["configs.every_nth"].get_config(preset)
        for architecture in ("encoder_decoder", "decoder_only"):
            config.model.architecture = architecture
            experiment = make_experiment(config.to_dict())
            assert (
                0.75 * experiment.data.inputs_length
                < experiment.window_specs[0].raw_length
                < experiment.data.inputs_length
            )
    config.objective.period = 1
    with pytest.raises(ConfigError, match=r"objective.period=1 must be 2 or more"):
        make_experiment(config.to_dict())
