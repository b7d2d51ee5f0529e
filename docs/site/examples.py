"""What train.show prints of each config on the texts in docs/examples, as HTML."""

import functools
import html
import re
from pathlib import Path

from experiment.experiment import make_experiment
from show.html import examples_html
from show.page import open_page
from show.style import DARK, LIGHT, RULES
from command.flags import resolve

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
    """Returns the examples of train.show as an element with a style sheet of its own.

    root: of the repository. cache_dir: for the token stores.
    """
    own = dict(overrides(config)) | {"data.path": str(root / overrides(config)["data.path"])}
    fields = resolve(str(root / f"configs/{config}.py"), own | {"data.cache_dir": cache_dir}, config)
    page = open_page(make_experiment(fields), title=config)
    # In em: the site's rem is not that of train.show's page.
    rules = re.sub(r"(?<=[\d.])rem", "em", RULES) + "figure { flex-basis: 11em; }\n"
    # A shadow tree: neither the site's style sheet nor this one applies to the other's elements.
    body = f"<style>\n{rules}</style>\n{examples_html(page)}"
    label = html.escape(f"Examples of {config}, as train.show prints them")
    return (
        f'<div class="show" role="figure" aria-label="{label}" data-search-exclude>'
        f'<template shadowrootmode="open">{body}</template></div>'
    )


@functools.cache
def style() -> str:
    """Returns the colors of the examples for the light and the dark scheme of the site."""
    font = "font: 0.7rem/1.5 var(--md-text-font-family, system-ui), sans-serif; color: var(--text);"
    return (
        f"[data-md-color-scheme=default] .show {{\n{LIGHT}}}\n"
        f"[data-md-color-scheme=slate] .show {{\n{DARK}}}\n.show {{ {font} }}\n"
    )
