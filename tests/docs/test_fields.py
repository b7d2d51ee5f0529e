"""The generated page of config fields has every field, with its type, its default and its documentation."""

import dataclasses

import pytest

from configs import base
from docs.site import fields, pages
from objectives import OBJECTIVES
from workdir.run_config import flatten

PAGE = pages.configs_page()


def test_the_page_has_every_field_of_the_config_once():
    names = [*flatten(base.get_config().to_dict()), "data.sources"]  # the last is a table without rows
    headings = [line for line in PAGE.split("\n") if line.startswith("### `")]
    assert sorted(headings) == sorted(f"### `{name}` {{ #{name} }}" for name in names)


def test_the_page_has_every_field_of_every_objective():
    for name, objective in OBJECTIVES.items():
        section = PAGE.split(f"{{ #objective.{name} }}")[1].split("###")[0]
        for field in dataclasses.fields(objective):
            assert f"`{field.name}`" in section, (name, field.name)


def test_a_field_has_type_default_and_both_comments():
    by_name = {field.name: field for section in fields.base_fields().values() for field in section}
    assert by_name["data.inputs_length"].markdown == (
        "Default `128`: tokens of a row: the encoder's positions, or all positions of a single stack."
    )
    assert by_name["model.norm"].type == '`"rms"`, `"layer"`'
    heldout = by_name["data.heldout_fraction"].markdown
    assert heldout.startswith("Default `0.1`: expected share of the units that is held out")
    assert "\n\nThe split into training and held-out text." in heldout
    documents = by_name["data.documents"].markdown
    assert '```text\ndocuments: "join"   A window continues into the next document.' in documents


def test_a_field_without_a_comment_is_an_error(monkeypatch):
    comments = dict(fields._base_comments(fields._types()))
    comments["train.steps"] = ("600", "", ())
    monkeypatch.setattr(fields, "_base_comments", lambda _: comments)
    with pytest.raises(ValueError, match=r"train\.steps has no comment"):
        fields.base_fields()
    del comments["train.steps"]
    with pytest.raises(ValueError, match=r"differ in the config fields train\.steps"):
        fields.base_fields()


def test_a_field_that_no_docstring_describes_is_an_error():
    @dataclasses.dataclass(frozen=True)
    class Undocumented(OBJECTIVES["span_corruption"]):
        """A share of tokens."""

        extra: int

    with pytest.raises(ValueError, match="Undocumented does not describe extra"):
        fields.objective_fields(Undocumented)


def test_prose_is_escaped_and_paths_and_fields_are_code():
    text = "see data/windows/split.py: <s>, rate * n, [CLS], objective.denoisers.*.weight. and `a|b`"
    expected = "see `data/windows/split.py`: &lt;s>, rate \\* n, \\[CLS\\], `objective.denoisers.*.weight`. and `a|b`"
    assert fields.escaped(text) == expected
