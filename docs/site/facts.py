"""What README.md, docs/ and the studies say about each config, read from the files that readers see on GitHub."""

import dataclasses
import functools
import re
from pathlib import Path

from studies.study import load_study

ROOT = Path(__file__).resolve().parents[2]
TITLES = {"ul2": "UL2", "ul2r": "UL2R", "ul2_baselines": "UL2's baselines"}  # configs that share a row of README
# The works that README's table of objectives cites.
REFERENCES = {
    "Radford et al. 2019": "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
    "Gloeckle et al. 2024": "https://arxiv.org/abs/2404.19737",
    "DeepSeek-AI 2024": "https://arxiv.org/abs/2412.19437",
    "Bavarian et al. 2022": "https://arxiv.org/abs/2207.14255",
    "Raffel et al. 2020": "https://arxiv.org/abs/1910.10683",
    "Lewis et al. 2020": "https://arxiv.org/abs/1910.13461",
    "Tay et al. 2022": "https://arxiv.org/abs/2205.05131",
    "Devlin et al. 2019": "https://arxiv.org/abs/1810.04805",
    "Liu et al. 2019": "https://arxiv.org/abs/1907.11692",
    "Dong et al. 2019": "https://arxiv.org/abs/1905.03197",
    "Lan et al. 2020": "https://arxiv.org/abs/1909.11942",
    "Clark et al. 2020": "https://arxiv.org/abs/2003.10555",
    "Gao et al. 2021": "https://arxiv.org/abs/2104.08821",
    "Taori et al. 2023": "https://github.com/tatsu-lab/stanford_alpaca",
}
UL2R_REFERENCE = "[Tay et al. 2022, UL2R](https://arxiv.org/abs/2210.11399)"


@dataclasses.dataclass(frozen=True)
class Summary:
    """A row of README's table of objectives."""

    name: str
    configs: tuple[str, ...]
    description: str  # continues "the model ..."
    reference: str  # Markdown


@dataclasses.dataclass(frozen=True)
class Measured:
    """A row of the table of docs/objectives.md."""

    architectures: str
    loss: str


@dataclasses.dataclass(frozen=True)
class StudyOf:
    """A study that trains a config."""

    name: str
    question: str
    effect: str  # a cell of docs/results/README.md; "" where the study has no report there


@functools.cache
def summaries() -> dict[str, Summary]:
    """Returns the row of README's table of objectives of each config."""
    rows = {}
    for cells in _rows(ROOT / "README.md", "| objective | config |"):
        names = re.findall(r"\[([^\]]+)\]\(objectives/\w+\.py\)", cells[0])
        configs = tuple(re.findall(r"\(configs/(\w+)\.py\)", cells[1]))
        for k, config in enumerate(configs):
            name = names[k] if len(names) == len(configs) else names[0]
            rows[config] = Summary(name, configs, cells[2], _linked(cells[3]))
    rows["ul2r"] = dataclasses.replace(rows["ul2r"], reference=UL2R_REFERENCE)
    return rows


@functools.cache
def measured() -> dict[str, Measured]:
    """Returns the architectures and the held-out loss of each config, from docs/objectives.md."""
    rows = _rows(ROOT / "docs" / "objectives.md", "| config | architectures |")
    return {re.findall(r"/(\w+)\.py", config)[0]: Measured(*cells) for config, *cells in rows}


@functools.cache
def studies() -> dict[str, list[StudyOf]]:
    """Returns the studies that train each config, those with a report first."""
    readme = ROOT / "docs" / "results" / "README.md"
    effects = {re.findall(r"\((\w+)/report", study)[0]: text for study, text in _rows(readme, "| study | effect |")}
    found: dict[str, list[StudyOf]] = {}
    for path in sorted((ROOT / "configs" / "studies").glob("*.py")):
        if path.stem in ("__init__", "base", "common"):
            continue
        study = load_study(str(path))
        trained = [study.config_of(variant) for variant in study.variants]
        trained += [variant.start.config for variant in study.variants.values() if variant.start]
        for config in sorted({Path(one.partition(":")[0]).stem for one in trained}):
            found.setdefault(config, []).append(StudyOf(path.stem, study.question, effects.get(path.stem, "")))
    return {config: sorted(rows, key=lambda row: (not row.effect, row.name)) for config, rows in found.items()}


def title(config: str) -> str:
    """Returns the title of a config's page, such as "Span corruption"."""
    name = TITLES.get(config) or (summaries()[config].name if config in summaries() else config.replace("_", " "))
    return name[0].upper() + name[1:]


def _linked(references: str) -> str:
    """Returns cited works with their addresses. Raises ValueError for a work that is not in REFERENCES."""
    names = re.findall(r"[^;]+? \d{4}", references)
    for name in map(str.strip, names):
        if name not in REFERENCES:
            raise ValueError(f"README.md cites {name}: add its address to docs/site/facts.py")
        references = references.replace(name, f"[{name}]({REFERENCES[name]})")
    return references


def _rows(page: Path, head: str) -> list[list[str]]:
    """Returns the cells of the rows of the table of `page` whose head begins with `head`. Raises ValueError without."""
    lines = page.read_text(encoding="utf-8").split("\n")
    begin = next((k for k, line in enumerate(lines) if line.startswith(head)), None)
    if begin is None:
        raise ValueError(f"{page.name} has no table that begins with {head}")
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows
