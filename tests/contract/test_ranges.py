"""Every number field of a config has a declared range. tests/test_table.py makes every shipped config."""

import dataclasses
import math
import typing
from typing import Annotated

import pytest

from contract.errors import ConfigError
from contract.ranges import check_ranges, intervals_of, range_in_words
from data.sources.config import CorpusConfig
from data.sources.filters import FilterConfig
from docs.site.fields import DERIVED
from experiment.config import ExperimentConfig, from_mapping
from experiment.objective import LinearMixtureFields, LinearRowFields
from models.config import ModelConfig
from objectives import OBJECTIVES
from objectives.mixture import Mixture, TableRow


def number_fields(cls):
    """Name -> annotation, of the fields of a dataclass that hold an int, a float, or a tuple of them."""
    hints = typing.get_type_hints(cls, include_extras=True)
    plain = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.name not in DERIVED]
    items = {name: typing.get_args(plain[name])[:1] or (plain[name],) for name in names}
    of_tuples = {name for name in names if typing.get_origin(hints[name]) is tuple}
    return {
        name: typing.get_args(hints[name])[0] if name in of_tuples else hints[name]
        for name in names
        if items[name][0] in (int, float)
    }


SECTIONS = [hint for hint in typing.get_type_hints(ExperimentConfig).values() if dataclasses.is_dataclass(hint)]
CLASSES = (ExperimentConfig, *SECTIONS, CorpusConfig, FilterConfig, ModelConfig, *OBJECTIVES.values())
CLASSES += (LinearMixtureFields, LinearRowFields, Mixture, TableRow)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_number_field_declares_a_range(cls):
    for name, hint in number_fields(cls).items():
        assert range_in_words(hint), f"{cls.__name__}.{name} declares no range: Annotated[int, '[1, 64]']"
        (text,) = hint.__metadata__
        assert not any(math.nan in interval for interval in intervals_of(text))


def test_the_number_fields_are_found():
    names = {name for cls in CLASSES for name in number_fields(cls)}
    assert {"seed", "num_sentinels", "d_model", "learning_rate", "ngram_weights", "begin_step", "weight"} <= names
    assert len(names) > 70


@pytest.mark.parametrize(
    ("hint", "words", "inside", "outside"),
    [
        (Annotated[float, "[0, 1)"], "in [0, 1)", (0, 0.0, 0.5), (1.0, -0.1, math.nan, math.inf)),
        (Annotated[float, "(0, inf)"], "above 0 and finite", (1e-30, 1e30), (0.0, math.inf, math.nan)),
        (Annotated[float, "[0, inf)"], "0 or more, and finite", (0.0,), (math.inf, -1.0)),
        (Annotated[float, "[0, inf]"], "0 or more", (math.inf,), (math.nan, -math.inf)),
        (Annotated[int, "[1, inf)"], "1 or more", (1, 10**400), (0, -1)),
        (Annotated[int, "[0, 2**31)"], "from 0 to 2147483647", (0, 2**31 - 1), (2**31, 10**400)),
        (Annotated[int, "[-2**63, 2**63)"], f"from {-(2**63)} to {2**63 - 1}", (-(2**63),), (2**63, -(2**63) - 1)),
        (Annotated[int, "[-1, -1] or [1, 8]"], "-1, or from 1 to 8", (-1, 1, 8), (0, -2, 9)),
        (Annotated[float, "(0, 1e30]"], "in (0, 1e30]", (1e30,), (1.1e30,)),
    ],
)
def test_a_range(hint, words, inside, outside):
    cls = dataclasses.make_dataclass("Fields", [("size", hint), ("sizes", tuple[hint, ...]), ("text", str)])
    cls.__module__ = __name__
    assert range_in_words(hint) == words
    for value in inside:
        check_ranges(cls, {"size": value, "sizes": (value, value), "text": ""}, "model")
    for value in outside:
        for fields in ({"size": value, "sizes": ()}, {"size": inside[0], "sizes": (inside[0], value)}):
            with pytest.raises(ConfigError) as error:
                check_ranges(cls, fields | {"text": ""}, "model")
            assert str(error.value).startswith("model.size") and f"must be {words}" in str(error.value)


@pytest.mark.parametrize("text", ["[0, 1", "0, 1", "[a, 1]", "[1, 0]", "[0,1]", ""])
def test_a_text_that_is_no_range_is_an_error(text):
    with pytest.raises(ValueError, match=r"is not an interval|in the wrong order"):
        intervals_of(text)


def test_a_number_too_large_for_a_float_is_refused():
    cls = dataclasses.make_dataclass("Fields", [("rate", Annotated[float, "(0, inf)"])])
    with pytest.raises(ConfigError, match=r"^model.rate=inf must be above 0 and finite$"):
        from_mapping(cls, {"rate": 10**400}, "model")
