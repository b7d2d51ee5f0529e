"""Every config has a page, and the site's sources are complete."""

import re

import pytest
import yaml

from docs.site import pages


def test_every_config_has_a_page_with_its_command_and_its_fields():
    assert {"ul2", "clm", "sft"} <= set(pages.config_names())
    for name in pages.config_names():
        page = pages.objective_page(name)
        assert page.startswith("# ") and "## The fields of `objective`" in page and pages.EXAMPLES in page
        assert pages.command(name).split()[3] == f"--config=configs/{name}.py" in page
    denoisers = yaml.safe_load(re.search("```yaml(.*?)```", pages.objective_page("ul2"), re.DOTALL)[1])["denoisers"]
    assert list(denoisers) == ["r1", "r2", "s", "x1", "x2", "x3", "x4"] and denoisers["x2"]["noise_density"] == 0.5


def test_a_page_has_the_name_that_the_table_of_objectives_has():
    text = (pages.ROOT / "docs" / "objectives.md").read_text(encoding="utf-8").partition("## Architectures")[0]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", text, re.MULTILINE)
    names = {config: objectives for objectives, configs in rows for config in re.findall(r"\[(\w+)\]\(", configs)}
    without = {"ul2", "ul2r", "ul2_baselines", "hybrid", "clm_then_mlm"}  # several configs of one objective
    assert set(pages.config_names()) - without < set(names)
    for config in set(pages.config_names()) - without:
        name = pages.title(config).partition(" (")[0]
        assert f"[{name}](" in names[config] or f"[{name[0].lower()}{name[1:]}](" in names[config], (config, name)


def test_every_config_is_in_the_tables_of_objectives():
    text = (pages.ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    for name in pages.config_names():
        rows = text.count(f"[{name}](../configs/{name}.py)")
        assert rows >= 2, f"add configs/{name}.py to the tables of docs/objectives.md: its losses and its reference"


def test_the_examples_are_those_of_the_command(tmp_path):
    shown = pages.examples("mlm", str(tmp_path))
    assert shown == pages.examples("mlm", str(tmp_path))
    assert "[MASK]" in shown and "encoder self-attention" in shown and str(pages.ROOT) not in shown


def test_the_navigation_has_every_page():
    text = (pages.ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"([\w/*]+\.md)", text.split("\nnav:")[1]))
    written = {str(path.relative_to(pages.ROOT / "docs")) for path in (pages.ROOT / "docs").glob("*.md")}
    assert written <= named
    assert named - written == {
        *("objectives/*.md", "results/README.md", "results/*/report.md"),
        *("configs.md", "benchmarks.md", "changelog.md", "contributing.md"),
    }


@pytest.mark.parametrize("address", [None, "https://example.org/cloze/"])
def test_a_site_that_is_published_has_an_address(address, monkeypatch):
    """Without it the sitemap is empty, and the page 404 reads its style from the root of the server."""
    load = pytest.importorskip("mkdocs.utils.yaml").yaml_load
    monkeypatch.setenv("SITE_URL", address) if address else monkeypatch.delenv("SITE_URL", raising=False)
    with open(pages.ROOT / "mkdocs.yml", encoding="utf-8") as file:
        assert load(file)["site_url"] == address
