"""The generated pages of the site: one for each config, with examples, and the page of all config fields."""

import html
import importlib
import inspect
import json
import textwrap
from pathlib import Path

import yaml

from command.flags import resolve
from docs.site.fields import Field, base_fields, escaped, objective_fields
from experiment.experiment import make_experiment
from objectives import OBJECTIVES
from show.page import open_page
from show.terminal import html_examples

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "<!-- examples -->"  # replaced in the page's HTML by `examples`
# Fields with which a page shows its examples: the texts in docs/examples.
TEXTS = {"data.source": "text", "data.path": "docs/examples/text"}
# Configs whose objective needs prompts and responses, or labels.
OTHER_TEXTS = {
    "sft": {"data.source": "jsonl", "data.path": "docs/examples/pairs.jsonl", "data.inputs_length": 256},
    "teacherless": {"data.source": "jsonl", "data.path": "docs/examples/pairs.jsonl", "data.inputs_length": 256},
    "classification": {
        "data.source": "jsonl",
        "data.path": "docs/examples/labels.jsonl",
        "data.inputs_length": 128,
        "objective.classes": "('water', 'food')",
    },
}
# Titles of the pages of configs, where the name of the file does not spell them.
_TITLES = {
    "clm_then_mlm": "CLM, then MLM",
    "electra": "ELECTRA",
    "future_summary": "Future summaries",
    "hybrid": "Hybrid: CLM and MNTP",
    "iid_denoising": "I.i.d. denoising",
    "masked_inputs": "CLM with masked inputs",
    "multi_token_prediction": "Multi-token prediction",
    "next_latent": "Next latents",
    "pegasus": "PEGASUS",
    "prefix_lm": "Prefix LM",
    "reverse": "Reverse training",
    "sigma_gpt": "Any order (sigma-GPT)",
    "simcse": "SimCSE",
    "ul2_baselines": "Baselines of UL2",
    "unilm": "UniLM",
}
_SECTIONS = {
    "": ("The run", "Fields without a section: `--config.seed=1`."),
    "data": ("data", "The corpus, its tokens, its split, and how text becomes the rows of a batch."),
    "data.filters": ("data.filters", "Documents that the token store excludes."),
    "model": ("model", "The Transformer. T5, BERT, GPT-2, Llama, BART and ELECTRA are values of these fields."),
    "loss": ("loss", "The cross-entropy of the scored tokens."),
    "distillation": ("distillation", "A teacher, whose predictions are targets too."),
    "optimizer": ("optimizer", "The update of the parameters."),
    "train": ("train", "The length of a run, its batches, reports, evaluations and checkpoints."),
    "mesh": ("mesh", "How devices share a run."),
}


def config_names() -> list[str]:
    """Returns the configs that have a page."""
    no_experiments = {"base", "architectures", "machines", "recipes", "sizes", "multitask"}
    return sorted({path.stem for path in (ROOT / "configs").glob("[!_]*.py")} - no_experiments)


def title(config: str) -> str:
    """Returns the title of a config's page, such as "Span corruption"."""
    return _TITLES.get(config) or (config.upper() if len(config) < 5 else config.replace("_", " ").capitalize())


def objective_page(name: str) -> str:
    """Returns the page of a config as Markdown: what the model sees, the config's docstring, the objective's fields."""
    module = importlib.import_module(f"configs.{name}")
    objective = module.get_config().objective.to_dict()
    # As YAML has it: lists in place of tuples, and floats of six digits.
    plain = json.loads(json.dumps(objective), parse_float=lambda number: float(f"{float(number):.6g}"))
    first, _, rest = (inspect.getdoc(module) or "").partition("\n\n")
    lines = [
        f"# {title(name)}",
        "",
        escaped(" ".join(first.split())),
        "",
        f"    python -m train.main --config=configs/{name}.py",
        "",
        f"Objective: `objectives/{objective['name']}.py`. Config: `configs/{name}.py`. References, architectures and "
        "held-out losses: [all objectives](../objectives.md).",
        "",
        "## What the model sees",
        "",
        "Examples of a fixed text, as this command prints them:",
        "",
        textwrap.indent(command(name), "    "),
        "",
        EXAMPLES,
        "",
        "## The config",
        "",
        *(["```text", rest, "```"] if rest else []),
        "",
        "## The fields of `objective`",
        "",
        "```yaml",
        yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110).strip(),
        "```",
        "",
        *_fields_table(OBJECTIVES[objective["name"]]),
    ]
    if "denoisers" in objective:
        lines += ["", "The fields of a denoiser are those of its objective."]
    return "\n".join(lines) + "\n"


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
            kind = f"One of {field.type}" if field.type.startswith("`") else field.type
            lines += ["", f"### `{field.name}` {{ #{field.name} }}", "", f"{kind}. {field.markdown}"]
    lines += [
        "",
        "## objective",
        "",
        "`objective.name` is an entry of `objectives.OBJECTIVES`. Its other fields are those of the objective's class, "
        "and have no default: each config gives its values.",
        "",
    ]
    for name, objective in OBJECTIVES.items():
        lines += [f"### Objective `{name}` {{ #objective.{name} }}", "", *_fields_table(objective), ""]
    return "\n".join(lines)


def _fields_table(objective: type) -> list[str]:
    groups: dict[tuple[str, ...], list[Field]] = {}
    for field in objective_fields(objective):  # fields that a docstring describes together are in one row
        groups.setdefault(field.lines, []).append(field)
    rows = ["| field | type | meaning |", "|---|---|---|"] if groups else ["It has no other fields."]
    for lines, group in groups.items():
        names = ", ".join(f"`{field.name}`" for field in group)
        rows.append(f"| {names} | {group[0].type} | {escaped(' '.join(line.strip() for line in lines))} |")
    return rows


def overrides(config: str) -> dict[str, str | int]:
    """Returns the fields with which the page of `config` shows its examples."""
    return OTHER_TEXTS.get(config, TEXTS)


def command(config: str) -> str:
    """Returns the command that prints the examples of `config`'s page."""
    values = {name: f'"{value}"' if "'" in str(value) else value for name, value in overrides(config).items()}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    lines = [f"python -m train.show --config=configs/{config}.py", *flags]
    return " \\\n    ".join(lines)


def examples(config: str, cache_dir: str) -> str:
    """Returns the examples of train.show as an element. cache_dir: for the token stores."""
    own = dict(overrides(config)) | {"data.path": str(ROOT / overrides(config)["data.path"])}
    fields = resolve(str(ROOT / f"configs/{config}.py"), own | {"data.cache_dir": cache_dir}, config)
    page = open_page(make_experiment(fields), title=command(config).partition(" \\")[0])
    label = html.escape(f"Examples of {config}, as train.show prints them")
    return f'<div role="figure" aria-label="{label}" data-search-exclude>{html_examples(page)}</div>'
