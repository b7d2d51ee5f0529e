"""Every objective and every config has a page with its facts, and the site's sources are complete."""

import re

import pytest

from docs.site import examples, facts, pages
from objectives import OBJECTIVES


def test_every_objective_and_every_config_has_a_page():
    names = pages.page_names()
    no_experiments = {"base", "architectures", "machines", "recipes", "multitask"}
    shipped = {path.stem for path in (facts.ROOT / "configs").glob("[!_]*.py")} - no_experiments
    assert set(names) == shipped | set(OBJECTIVES) and len(names) == len(set(names))


@pytest.mark.parametrize("name", pages.page_names())
def test_a_page_says_what_the_objective_is(name):
    page = pages.objective_page(name)
    assert page.startswith("# ") and "## The fields of `objective`" in page
    if name != "mixture":
        if len(facts.summaries()[name].configs) == 1:
            assert f"The model {facts.summaries()[name].description}." in page
        assert "](https://" in page.split("##")[0]  # the reference
        assert facts.measured()[name].loss in page
        assert examples.command(name).split()[3] == f"--config=configs/{name}.py" in page
        assert pages.EXAMPLES in page and "## What its ablations say" in page


def test_facts_are_those_of_the_tables():
    assert facts.summaries()["ul2r"].configs == ("ul2", "ul2r", "ul2_baselines")
    assert facts.summaries()["sop"].name == "SOP" and facts.title("span_corruption") == "Span corruption"
    assert facts.summaries()["mlm"].reference == (
        "[Devlin et al. 2019](https://arxiv.org/abs/1810.04805); [Liu et al. 2019](https://arxiv.org/abs/1907.11692)"
    )
    trained_by = {study.name: study for study in facts.studies()["mlm"]}
    assert trained_by["masking_rate"].effect.startswith("scored at 15% with masks alone")
    assert "ul2r" in {study.name for study in facts.studies()["clm"]}  # the start of a variant


def test_the_table_of_denoisers_has_every_denoiser():
    page = pages.objective_page("ul2")
    assert re.findall(r"^\| `(\w+)` \| `\[[RSX]\]`", page, re.MULTILINE) == ["r1", "r2", "s", "x1", "x2", "x3", "x4"]
    assert "[span_corruption](span_corruption.md)" in page and "`noise_density=0.5`" in page


def test_docstrings_become_prose_code_and_tables():
    text = "Use it:\n\n    python -m x\n\nSizes: tiny. Variants:\n  a   one\n      more\n  b   two\nThe end."
    assert pages.docstring_markdown(text) == (
        "Use it:\n\n    python -m x\n\nSizes: tiny. Variants:\n\n"
        "| | |\n|---|---|\n| `a` | one more |\n| `b` | two |\n\nThe end."
    )


def test_the_examples_are_those_of_the_command(tmp_path):
    shown = examples.examples("mlm", facts.ROOT, str(tmp_path))
    assert shown == examples.examples("mlm", facts.ROOT, str(tmp_path))
    assert "[MASK]" in shown and "encoder self-attention" in shown and str(facts.ROOT) not in shown


def test_the_navigation_has_every_page():
    text = (facts.ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"([\w/*]+\.md)", text.split("\nnav:")[1]))
    written = {str(path.relative_to(facts.ROOT / "docs")) for path in (facts.ROOT / "docs").glob("*.md")}
    assert written <= named
    missing = named - written
    assert missing == {
        *("objectives/*.md", "results/README.md", "results/*/report.md"),
        *("configs.md", "benchmarks.md", "changelog.md", "contributing.md"),
    }
