"""python -m train.show --config=configs/ul2.py[:preset] [--num_examples=N] [--html=FILE] [--config.a.b=value ...]

What an objective makes of real text: examples as training reads them, what of them is scored, which positions see
which, and counts over many examples beside what the config asks for. No model is built.
"""

import os
import sys

import jax
from absl import flags
from ml_collections import config_flags
from rich.console import Console

from contract.errors import ConfigError
from data.store import open_or_build
from train.command import parse_config_flags, run_command
from train.experiment import make_experiment
from train.show.html import html_page
from train.show.page import make_page
from train.show.terminal import print_page

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment: a file of configs/, with :preset or without.")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", None, "Examples to show; where left out, one of each denoiser.")
_HTML = flags.DEFINE_string("html", None, "File to write the same to, as one HTML page with nothing outside it.")

_FEWEST = 3  # examples, where their number is left out


def main() -> None:
    """Reads the command line, prints the page and writes it where it was asked for."""
    config = parse_config_flags(sys.argv, _CONFIG)
    # Nothing here needs an accelerator, and a TPU that is training would not let another process in.
    jax.config.update("jax_platforms", "cpu")
    experiment = make_experiment(config)
    num_examples = _NUM_EXAMPLES.value
    if num_examples is None:
        num_examples = max(_FEWEST, len(experiment.collator.denoisers))
    if num_examples < 1:
        raise ConfigError(f"--num_examples={num_examples} must be 1 or more")
    if _HTML.value is not None:
        _write(_HTML.value, "a", "")  # before anything slow
    documents, _ = open_or_build(experiment.data, experiment.tokenizer).split(
        experiment.data.heldout_fraction, experiment.seed
    )
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    title = [config_flags.get_config_filename(flags.FLAGS["config"]), *(f"{k}={v}" for k, v in overrides.items())]
    page = make_page(experiment, documents, title=" ".join(title), num_examples=num_examples)
    console = Console(highlight=False, markup=False, emoji=False)
    print_page(page, console)
    if _HTML.value is not None:
        _write(_HTML.value, "w", html_page(page))
        console.print(f"\nwritten to {os.path.abspath(_HTML.value)}", soft_wrap=True)


def _write(path: str, mode: str, text: str) -> None:
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        where = "name a file in a folder that is there"
        raise ConfigError(f"--html={path} cannot be written ({error.strerror}): {where}") from error


if __name__ == "__main__":
    run_command(main)
