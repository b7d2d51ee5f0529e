"""A field of a config refuses values of other types and outside of its range, in one line that names the field.

Types and ranges are checked by the declarations of the fields, which tests/contract/test_ranges.py walks, so a field of
each type is enough here.
"""

import math

import pytest
from absl import flags

from command.flags import config_fields, define_config, parse_flags
from configs import clm
from experiment.experiment import make_experiment
from tests.bad_input.answers import check_rows, row

VALUES = {
    "data.inputs_length": ("8", None, True, 0.5, (1,), 0, -1, 10**30),
    "optimizer.learning_rate": ("1", None, True, [0.1], -1.0, math.nan, math.inf),
    "model.tie_embeddings": (1, "True", None),
    "data.path": (5, None, b"a", ["a"]),
    "model.architecture": ("no such name", "", None, ["decoder_only"], 1),
    "data.mode_tokens": (5, "[R]", (1,), ({"a": 1},)),
    "mesh.data": (0, -2),  # -1: all devices
    "data.filters.jaccard": (0.0, 1.5),
    "data.sources": (5, ["a"], {"a": 1}),
}


def with_field(config, name, value):
    """A copy of a config with another value of the dotted field `name`; ... removes the field."""
    first, _, rest = name.partition(".")
    if rest:
        return config | {first: with_field(config[first], rest, value)}
    return {key: value for key, value in config.items() if key != first} | ({} if value is ... else {first: value})


def experiment_of(name, value):
    return row(lambda: make_experiment(with_field(clm.get_config().to_dict(), name, value)), names=name)


def test_values_of_other_types_and_beyond_ranges():
    check_rows([experiment_of(name, value) for name, values in VALUES.items() for value in values])


def test_sections_that_are_no_groups_and_fields_that_are_missing_or_unknown():
    rows = [experiment_of(name, value) for name in ("train", "data.filters", "objective") for value in (None, 5, [])]
    rows += [experiment_of(name, ...) for name in ("seed", "train.steps", "data.filters.jaccard", "objective.name")]
    rows += [experiment_of(name, 1) for name in ("sed", "train.stepsx", "data.filters.x", "objective.rate")]
    check_rows(rows)


def parse():
    values = flags.FlagValues()
    define_config(values)
    parse_flags(values, "Usage.")
    make_experiment(config_fields(values))


@pytest.mark.parametrize(
    "source",
    [
        "def (:",
        "raise RuntimeError('x\\ny')",
        "x = 1",
        "def get_config():\n    return None",
        "from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict()",
    ],
)
def test_a_file_that_is_no_config(source, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    check_rows([row(parse, f"--config={tmp_path}/mine.py", names=(f"{tmp_path}/mine.py", "config field"))])
