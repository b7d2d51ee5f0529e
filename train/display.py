"""Prints the progress of a run: a live display on a terminal, plain lines in a file or a pipe."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import jax
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from run.metrics import perplexity

_EVAL = ("loss", "loss_stderr", "perplexity", "accuracy", "bits_per_byte")
_NO_LIMIT = 10_000  # columns, more than any table has
_NOT_PRINTED = (*_EVAL, "unknown_fraction", "bytes_covered")  # the last two hardly differ between evaluations


class Display:
    """Prints the progress and the metrics of a run of `total_steps` steps that starts after `start_step` steps.

        with Display(1000, 0) as display:
            display.update(step)            # after each step
            display.train(step, metrics)    # every train.log_every steps
            display.eval(step, metrics)     # after each evaluation

    On a terminal, a progress bar, the latest metrics and the latest loss of each denoiser stay below all other output.
    In a file or a pipe, `train` prints one line and `update` prints nothing. Only process 0 prints.

    Metrics have the names of run.metrics; a metric that is missing is not printed.

    Args:
      total_steps, start_step: of the run.
      console: standard output by default.
      rows: the denoisers and corpora whose losses are printed (Experiment.printed_groups); all by default.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int,
        *,
        console: Console | None = None,
        rows: Collection[str] | None = None,
    ):
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._console.quiet = jax.process_index() != 0
        self._is_live = self._console.is_interactive and not self._console.quiet
        self._rows = rows
        self._total = total_steps
        self._train: Mapping[str, float] = {}
        self._eval: Mapping[str, float] = {}
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            TextColumn("{task.fields[time_left]}", markup=False),
            console=self._console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=600,  # seconds: several steps, even of slow runs, with the evaluations between them
        )
        self._task = self._progress.add_task("", total=total_steps, completed=start_step, speed="", time_left="")
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._is_live:
            self._live.stop()

    def update(self, step: int) -> None:
        """Moves the progress bar to `step`."""
        self._progress.update(self._task, completed=step)

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints the metrics of training at `step`, or updates the live display."""
        self._train = metrics
        speed = _amount(metrics["tokens_per_second"]) + " tok/s" if "tokens_per_second" in metrics else ""
        self._progress.update(self._task, completed=step, speed=speed)
        if not self._is_live:
            width = len(str(self._total))
            cells = [f"step {step:>{width}}/{self._total}", *_cells(metrics, ("loss", "accuracy", "learning_rate"))]
            cells += [speed.rjust(11)] if speed else []
            self._print("  ".join([*cells, self._time_left()]).rstrip())

    def eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints held-out metrics, and the change of each denoiser's loss since the previous evaluation.

        The loss is printed with its standard error, the losses of denoisers and corpora in a table with theirs.
        """
        self._print("  ".join([f"eval at step {step}:", *_cells(metrics, _EVAL)]), style="bold")
        others = {name: value for name, value in metrics.items() if name not in _NOT_PRINTED and "/" not in name}
        if others:
            self._print("  " + "  ".join(f"{name} {value:.4g}" for name, value in others.items()))
        if len(names := self._names_in(metrics)) > 1:
            self._print_whole(_table(metrics, self._eval, names))
        self._eval = metrics

    def message(self, text: str) -> None:
        """Prints `text`."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Prints `text` as a warning."""
        self._print(f"WARNING: {text}", style="bold yellow")

    def _print(self, text: str, style: str = "") -> None:
        # Lines in a file or a pipe are not broken: programs read them.
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)

    def _print_whole(self, table: Table) -> None:
        """Prints `table` in its own width: in a narrow console its lines are longer, and no cell is cut."""
        table.width = self._console.measure(table, options=self._console.options.update(width=_NO_LIMIT)).maximum
        self._console.print(table, soft_wrap=True)

    def _names_in(self, metrics: Mapping[str, float]) -> list[str]:
        """Returns the names of the denoisers and corpora that have a loss in `metrics` and a row here."""
        found = [name.removeprefix("loss/") for name in metrics if name.startswith("loss/")]
        return [name for name in found if self._rows is None or name in self._rows]

    def _time_left(self) -> str:
        """Returns the estimated time to the end of the run, such as "1:02:03 left"; "" without an estimate."""
        seconds = self._progress.tasks[0].time_remaining
        if not seconds:  # no estimate yet, or no steps left
            return ""
        minutes, seconds = divmod(math.ceil(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return f"{clock} left"

    def _render(self) -> RenderableType:
        """Returns the live display."""
        self._progress.update(self._task, time_left=self._time_left())
        parts: list[RenderableType] = [self._progress.get_renderable()]
        shown = ("loss", "perplexity", "accuracy", "learning_rate", "grad_norm")
        if cells := _cells(self._train, shown):
            parts.append(Text("  ".join(cells)))
        if len(names := self._names_in(self._train)) > 1:
            cells = [f"{name} {self._train[f'loss/{name}']:.3f}" for name in names]
            parts.append(Columns([Text(cell, "cyan") for cell in cells], padding=(0, 2)))
        return Group(*parts)


_FORMATS = {
    "loss": "loss {:.4f}",
    "loss_stderr": "±{:.4f}",
    "perplexity": "perplexity {}",
    "accuracy": "acc {:.3f}",
    "bits_per_byte": "bits/byte {:.3f}",
    "learning_rate": "lr {:.2e}",
    "grad_norm": "grad norm {:.3g}",
}


def _table(metrics: Mapping[str, float], previous: Mapping[str, float], names: Sequence[str]) -> Table:
    """Returns a row for each of `names`: loss, standard error, perplexity, accuracy and change since `previous`.

    Columns without a value are omitted.
    """
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column()
    has_accuracy = any(name.startswith("accuracy/") for name in metrics)
    has_error = any(name.startswith("loss_stderr/") for name in metrics)
    for header in ("loss", *["stderr"] * has_error, "perplexity", *["acc"] * has_accuracy, "change"):
        table.add_column(header, justify="right", min_width=8)
    for name in names:
        loss, previous_loss = metrics[f"loss/{name}"], previous.get(f"loss/{name}")
        error = f"{metrics[f'loss_stderr/{name}']:.4f}" if f"loss_stderr/{name}" in metrics else ""
        accuracy = f"{metrics[f'accuracy/{name}']:.3f}" if f"accuracy/{name}" in metrics else ""
        table.add_row(
            Text(name),
            f"{loss:.4f}",
            *[error] * has_error,
            _amount(perplexity(loss)),
            *[accuracy] * has_accuracy,
            "" if previous_loss is None else f"{loss - previous_loss:+.4f}",
        )
    return table


def _cells(metrics: Mapping[str, float], names: tuple[str, ...]) -> list[str]:
    """Returns "name value" for those of `names` that are in `metrics`."""
    values = {name: metrics[name] for name in names if name in metrics}
    return [_FORMATS[name].format(_amount(v) if name == "perplexity" else v) for name, v in values.items()]


def _amount(value: float) -> str:
    """Returns a number in about three digits: 12.3, 950, 12.3k, 1.23M."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
