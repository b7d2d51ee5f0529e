"""python -m train.show --config=configs/ul2.py[:preset] [--num_examples=N] [--html=FILE] [--svg=FILE]
                     [--text=TEXT] [--config.a.b=value ...]
python -m train.show --workdir=RUN    with the config of a run

Prints what an objective makes of real text: examples as training reads them, the scored tokens, the attention masks,
and statistics of many examples with the values that the config implies. Builds no model. --text shows what the
objective makes of this text, with new draws in each example, and without statistics. --html also writes the page to a
file; --svg writes a picture of the examples and the attention masks, without facts and statistics.
"""

import os

import jax
from absl import flags
from rich.console import Console

from command.flags import config_fields, config_name, config_overrides, define_config, parse_flags, run_command
from contract.errors import ConfigError
from experiment.experiment import Experiment, make_experiment
from files.atomic import check_output, writing
from huggingface.origin import describe_taken, with_origin_fields
from run.restore import load_experiment
from run.texts import batch_of, takes_pairs, text_windows
from show.examples import Chunk
from show.page import Page, default_num_examples, make_page_of_rows, open_page
from show.terminal import AS_WRITTEN, html_page, print_page, svg_page

_FLAGS = flags.FlagValues()
define_config(_FLAGS, same_model=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run, in place of --config.", flag_values=_FLAGS)
_NUM_EXAMPLES = flags.DEFINE_integer(
    "num_examples", None, "Examples to show. Default: one of each denoiser, at least 3.", 1, 10_000, _FLAGS
)
_TEXT = flags.DEFINE_string("text", None, "Text to show, in place of the corpus.", _FLAGS)
_HTML = flags.DEFINE_string("html", None, "File to write the page to, as self-contained HTML.", _FLAGS)
_SVG = flags.DEFINE_string(
    "svg", None, "File to write the examples and the attention masks to, as an SVG picture for documents.", _FLAGS
)


def main() -> None:
    """Reads the command line, prints the page, and writes the files of --html and --svg."""
    parse_flags(_FLAGS, __doc__)
    for name in ("config", "same_model"):
        if _WORKDIR.value is not None and _FLAGS[name].value is not None:
            raise ConfigError(f"--workdir and --{name} exclude each other: remove one")
    # Nothing here needs an accelerator, and a TPU in use by a training run admits no second process.
    jax.config.update("jax_platforms", "cpu")
    if _WORKDIR.value is None:
        config = with_origin_fields(config_fields(_FLAGS), config_overrides(_FLAGS))
        for line in describe_taken(config_fields(_FLAGS), config):
            print(line)
        experiment = make_experiment(config)
    else:
        experiment = load_experiment(_WORKDIR.value)
    outputs = [(flag, render) for flag, render in ((_HTML, html_page), (_SVG, svg_page)) if flag.value is not None]
    for flag, _ in outputs:
        check_output(flag.value, f"--{flag.name}")  # before anything slow runs
    if _TEXT.value is None:
        page = open_page(experiment, title=_title(), num_examples=_NUM_EXAMPLES.value)
    else:
        page = _page_of_text(experiment, _TEXT.value)
    console = Console(**AS_WRITTEN)
    print_page(page, console)
    for flag, render in outputs:
        with writing(flag.value, f"--{flag.name}") as file:
            file.write(render(page))
        console.print(f"\nwritten to {os.path.abspath(flag.value)}", soft_wrap=True)


def _page_of_text(experiment: Experiment, text: str) -> Page:
    """Returns the page of --text: each denoiser in turn, with new draws in each turn."""
    names = experiment.denoiser_names
    if any(takes_pairs(experiment, name) for name in names):
        raise ConfigError("--text does not apply to an objective on prompts and responses: remove it")
    turns = [divmod(k, len(names)) for k in range(default_num_examples(experiment, _NUM_EXAMPLES.value))]
    windows = [
        text_windows(experiment, [text], denoiser=names[k], seed=seed, names=["--text"]).windows for seed, k in turns
    ]
    return make_page_of_rows(experiment, [Chunk(w, batch_of(experiment, w)) for w in windows], title=_title())


def _title() -> str:
    if _WORKDIR.value is not None:
        return f"--workdir={_WORKDIR.value}"
    same_model = _FLAGS["same_model"].value
    fields = [f"{name}={value}" for name, value in config_overrides(_FLAGS).items()]
    return " ".join([config_name(_FLAGS), *([f"--same_model={same_model}"] if same_model else []), *fields])


if __name__ == "__main__":
    run_command(main)
