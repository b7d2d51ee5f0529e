"""Links, commands and config files that README and docs name exist."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "BENCHMARKS.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text()) + re.findall(r'src="([^"]+)"', page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_configs_exist(page):
    text = page.read_text()
    own = {"every_nth", "every_nth_in_place"}  # the configs that the guide writes
    for module in set(re.findall(r"python -m ([\w.]+[\w])", text)):
        if module not in ("benchmarks.NAME", "train.NAME"):
            assert importlib.util.find_spec(module), module
    for config in set(re.findall(r"configs/(\w+)\.py", text)) - own:
        assert (ROOT / "configs" / f"{config}.py").exists(), config


def test_the_page_of_objectives_links_every_objective_to_its_file():
    page = (ROOT / "docs" / "objectives.md").read_text()
    infrastructure = {"__init__", "objective", "denoising", "prompting", "sentence_pairs"}
    files = {path.stem for path in (ROOT / "objectives").glob("*.py")} - infrastructure
    linked = set(re.findall(r"\(\.\./objectives/(\w+)\.py\)", page))
    assert linked <= files and len(linked) >= 17  # a new objective of a user needs no row there
