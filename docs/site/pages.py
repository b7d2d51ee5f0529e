"""The generated pages of the site: one for each config, and the page of all config fields."""

import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.site import examples
from docs.site.fields import Field, as_markdown, base_fields, double_quoted, escaped, objective_fields
from objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "<!-- examples -->"  # replaced in the page's HTML by examples.examples
_SECTIONS = {
    "": ("The run", "Fields without a section: `--config.seed=1`."),
    "data": ("data", "The corpus, its tokens, its split, and how text becomes the rows of a batch."),
    "data.filters": ("data.filters", "Documents that the token store excludes."),
    "model": ("model", "The Transformer. T5, BERT, GPT-2, Llama, BART and ELECTRA are values of these fields."),
    "loss": ("loss", "The cross-entropy of the scored tokens."),
    "optimizer": ("optimizer", "The update of the parameters."),
    "train": ("train", "The length of a run, its batches, reports, evaluations and checkpoints."),
    "mesh": ("mesh", "How devices share a run."),
}


def config_names() -> list[str]:
    """Returns the configs that have a page."""
    no_experiments = {"base", "architectures", "machines", "recipes", "multitask"}
    return sorted({path.stem for path in (ROOT / "configs").glob("[!_]*.py")} - no_experiments)


def title(config: str) -> str:
    """Returns the title of a config's page, such as "Span corruption"."""
    return config.upper() if len(config) < 5 else config.replace("_", " ").capitalize()


def objective_page(name: str) -> str:
    """Returns the page of a config as Markdown: what the model sees, the config's docstring, the objective's fields."""
    module = importlib.import_module(f"configs.{name}")
    objective = module.get_config().objective.to_dict()
    about = [
        f"# {title(name)}",
        "",
        escaped(_first_line(module)),
        "",
        f"    python -m train.main --config=configs/{name}.py",
        "",
        f"Objective: `objectives/{objective['name']}.py`. Config: `configs/{name}.py`. References, architectures and "
        "held-out losses: [all objectives](../objectives.md).",
    ]
    shown = [
        "## What the model sees",
        "",
        "Examples of a fixed text, as this command prints them:",
        "",
        textwrap.indent(examples.command(name), "    "),
        "",
        EXAMPLES,
    ]
    sections = [about, shown, _config_section(module), _fields_section(objective)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def configs_page() -> str:
    """Returns the page of all config fields as Markdown."""
    lines = [
        "# Config fields",
        "",
        "Every field of a config, with its type, its default in `configs/base.py` and its meaning. A config of "
        "[Objectives](objectives.md) changes some of the defaults, and a command line changes any field:",
        "",
        "    python -m train.main --config=configs/clm.py --config.train.steps=2000 "
        "--config.optimizer.no_decay=\"('norm', 'bias')\" --workdir=runs/clm-long",
        "",
        "A field keeps the type of its default. An unknown field, a value of another type and an impossible "
        "combination are errors at the start, in one line. `config.json` in a run's folder has the resolved config.",
    ]
    for section, fields in base_fields().items():
        heading, intro = _SECTIONS[section]
        lines += ["", f"## {heading}", "", intro]
        for field in fields:
            lines += ["", f"### `{field.name}` {{ #{field.name} }}", "", *_field(field)]
    lines += [
        "",
        "## objective",
        "",
        "`objective.name` is an entry of `objectives.OBJECTIVES`. Its other fields are those of the objective's class, "
        "and have no default: each config gives its values.",
        "",
    ]
    for name, objective in OBJECTIVES.items():
        fields = objective_fields(objective)
        lines += [f"### Objective `{name}` {{ #objective.{name} }}", ""]
        lines += [*_fields_table(fields, {}), ""] if fields else ["No fields.", ""]
    return "\n".join(lines)


def _field(field: Field) -> list[str]:
    kind = f"One of {field.type}" if field.type.startswith("`") else field.type
    return [f"{kind}. {field.markdown}"]


def _config_section(module: Any) -> list[str]:
    """The docstring of a config: presets, variants, deviations."""
    _, *rest = (inspect.getdoc(module) or "").split("\n\n")
    return ["## The config", "", escaped(_first_line(module)), "", docstring_markdown("\n\n".join(rest))]


def _first_line(module: Any) -> str:
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())


def docstring_markdown(text: str) -> str:
    """Returns a config's docstring as Markdown: commands as code, lists of names with descriptions as tables."""
    blocks = []
    for part in text.split("\n\n"):
        lines = part.split("\n")
        if all(line.startswith("    ") for line in lines):
            blocks.append(part)
            continue
        first = next((k for k, line in enumerate(lines) if re.match(r"  \S", line)), len(lines))
        last = next((k for k in range(first, len(lines)) if not lines[k].startswith("  ")), len(lines))
        for group in (lines[:first], lines[first:last], lines[last:]):
            if group and group[0].startswith("  "):
                blocks.append(_named_table(group))
            elif group:
                blocks.append(as_markdown(group))
    return "\n\n".join(blocks)


def _named_table(lines: list[str]) -> str:
    rows: list[list[str]] = []
    for line in lines:
        match = re.match(r"  (\S.*?)\s{2,}(\S.*)", line)
        if match:
            is_name = re.fullmatch(r"[\w.]+(, [\w.]+)*", match[1])
            rows.append([f"`{match[1]}`" if is_name else escaped(match[1]), match[2]])
        elif rows:
            rows[-1][1] += f" {line.strip()}"
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {escaped(text)} |" for name, text in rows)


def _fields_section(objective: dict[str, Any]) -> list[str]:
    """The fields of config.objective with the config's values; of a mixture, its table of denoisers."""
    name = objective["name"]
    lines = ["## The fields of `objective`", "", f"`objective.name` is `{json.dumps(name)}`."]
    fields = objective_fields(OBJECTIVES[name])
    if "denoisers" not in objective:
        return [*lines, "", *_fields_table(fields, objective)] if fields else [*lines, "It has no other fields."]
    own = [field for field in fields if field.name in objective and field.name != "denoisers"]
    common = {"name", "mode", "weight", "final_weight"}
    lines += ["", *_fields_table(own, objective), "", "The table of denoisers, `objective.denoisers`:", ""]
    lines += ["| denoiser | mode | weight | objective | fields |", "|---|---|---|---|---|"]
    for row_name, row in objective["denoisers"].items():
        weight = f"{row['weight']:.4g}" + (f" → {row['final_weight']:.4g}" if "final_weight" in row else "")
        values = ", ".join(f"`{key}={double_quoted(value)}`" for key, value in row.items() if key not in common)
        mode = f"`{row['mode']}`" if row["mode"] else "none"
        lines.append(f"| `{row_name}` | {mode} | {weight} | `{row['name']}` | {values} |")
    return [*lines, "", "The fields of a denoiser are those of its objective."]


def _fields_table(fields: list[Field], values: Mapping[str, Any]) -> list[str]:
    groups: dict[tuple[str, ...], list[Field]] = {}
    for field in fields:  # fields that a docstring describes together are in one row
        groups.setdefault(field.lines, []).append(field)
    head = ["| field | type | value here | meaning |", "|---|---|---|---|"]
    rows = head if values else ["| field | type | meaning |", "|---|---|---|"]
    for lines, group in groups.items():
        cells = [", ".join(f"`{field.name}`" for field in group), group[0].type]
        cells += [", ".join(f"`{_short(values[field.name])}`" for field in group)] if values else []
        rows.append(f"| {' | '.join(cells)} | {escaped(' '.join(line.strip() for line in lines))} |")
    return rows


def _short(value: Any) -> str:
    """Returns a value as source, with floats to six digits."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' * (len(value) == 1)})"
    return f"{value:.6g}" if isinstance(value, float) and value != int(value) else double_quoted(value)
