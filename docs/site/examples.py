"""What train.show prints of each config on the texts in docs/examples, as HTML."""

import html
from pathlib import Path

from command.flags import resolve
from experiment.experiment import make_experiment
from show.page import open_page
from show.terminal import html_examples

TEXTS = {"data.source": "text", "data.path": "docs/examples/text"}
# Configs whose objective needs prompts and responses, or labels.
OTHER_TEXTS = {
    "sft": {"data.source": "jsonl", "data.path": "docs/examples/pairs.jsonl", "data.inputs_length": 256},
    "classification": {
        "data.source": "jsonl",
        "data.path": "docs/examples/labels.jsonl",
        "data.inputs_length": 128,
        "objective.classes": "('water', 'food')",
    },
}


def overrides(config: str) -> dict[str, str | int]:
    """Returns the fields with which the page of `config` shows its examples."""
    return OTHER_TEXTS.get(config, TEXTS)


def command(config: str) -> str:
    """Returns the command that prints the examples of `config`'s page."""
    values = {name: f'"{value}"' if "'" in str(value) else value for name, value in overrides(config).items()}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    lines = [f"python -m train.show --config=configs/{config}.py", *flags]
    return " \\\n    ".join(lines)


def examples(config: str, root: Path, cache_dir: str) -> str:
    """Returns the examples of train.show as an element.

    root: of the repository. cache_dir: for the token stores.
    """
    own = dict(overrides(config)) | {"data.path": str(root / overrides(config)["data.path"])}
    fields = resolve(str(root / f"configs/{config}.py"), own | {"data.cache_dir": cache_dir}, config)
    page = open_page(make_experiment(fields), title=command(config).partition(" \\")[0])
    label = html.escape(f"Examples of {config}, as train.show prints them")
    return f'<div role="figure" aria-label="{label}" data-search-exclude>{html_examples(page)}</div>'
