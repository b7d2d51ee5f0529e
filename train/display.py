"""Prints the progress of a run: lines of metrics, and on a terminal a progress bar below them."""

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from command.program import visible
from run.metrics import perplexity

_EVAL = ("loss", "loss_stderr", "perplexity", "accuracy", "bits_per_byte")
_NOT_PRINTED = (*_EVAL, "unknown_fraction", "bytes_covered")  # the last two hardly differ between evaluations


class Display:
    """Prints the progress and the metrics of a run of `total_steps` steps that starts after `start_step` steps.

        with Display(1000, 0) as display:
            display.update(step)            # after each step
            display.train(step, metrics)    # every train.log_every steps
            display.eval(step, metrics)     # after each evaluation

    Only process 0 prints. Metrics have the names of run.metrics; a metric that is missing is not printed.

    Args:
      total_steps, start_step: of the run.
      console: standard output by default.
      rows: the denoisers and corpora whose losses are printed (Experiment.printed_groups); all by default.
    """

    def __init__(
        self, total_steps: int, start_step: int, *, console: Console | None = None, rows: Collection[str] | None = None
    ):
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._console.quiet = jax.process_index() != 0
        self._total, self._rows = total_steps, rows
        self._eval: Mapping[str, float] = {}
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            disable=not self._console.is_interactive or self._console.quiet,
            speed_estimate_period=600,  # seconds: several steps, even of slow runs, with the evaluations between them
        )
        self._task = self._progress.add_task("", total=total_steps, completed=start_step)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_) -> None:
        self._progress.stop()

    def update(self, step: int) -> None:
        """Moves the progress bar to `step`."""
        self._progress.update(self._task, completed=step)

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints a line with the metrics of training at `step`."""
        cells = [f"step {step:>{len(str(self._total))}}/{self._total}"]
        cells += _cells(metrics, ("loss", "accuracy", "learning_rate"))
        if "tokens_per_second" in metrics:
            cells.append(f"{_amount(metrics['tokens_per_second'])} tok/s".rjust(11))
        cells += _cells(metrics, ("mfu",))
        if metrics.get("data_wait_fraction", 0.0) >= _SHOWN_WAIT:
            cells.append(f"data wait {metrics['data_wait_fraction']:.0%}")
        if seconds := self._progress.tasks[0].time_remaining:
            cells.append(f"{datetime.timedelta(seconds=math.ceil(seconds))} left")
        self._print("  ".join(cells))

    def eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints held-out metrics, and the change of each denoiser's loss since the previous evaluation.

        The loss is printed with its standard error, the losses of denoisers and corpora in a table with theirs.
        """
        self._print("  ".join([f"eval at step {step}:", *_cells(metrics, _EVAL)]), style="bold")
        others = {name: value for name, value in metrics.items() if name not in _NOT_PRINTED and "/" not in name}
        if others:
            self._print("  " + "  ".join(f"{name} {value:.4g}" for name, value in others.items()))
        names = [name.removeprefix("loss/") for name in metrics if name.startswith("loss/")]
        names = [name for name in names if self._rows is None or name in self._rows]
        if len(names) > 1:
            self._print(_table(metrics, self._eval, names))
        self._eval = metrics

    def message(self, text: str) -> None:
        """Prints `text`."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Prints `text` as a warning."""
        self._print(f"WARNING: {text}", style="bold yellow")

    def _print(self, text: str, style: str = "") -> None:
        # Lines in a file or a pipe are not broken: programs read them.
        self._console.print(Text(visible(text), style=style), soft_wrap=not self._console.is_terminal)


_FORMATS = {
    "loss": "loss {:.4f}",
    "loss_stderr": "±{:.4f}",
    "perplexity": "perplexity {}",
    "accuracy": "acc {:.3f}",
    "bits_per_byte": "bits/byte {:.3f}",
    "learning_rate": "lr {:.2e}",
    "mfu": "mfu {:.0%}",
}
_SHOWN_WAIT = 0.05  # share of the time that is spent waiting for batches


def _cells(metrics: Mapping[str, float], names: tuple[str, ...]) -> list[str]:
    """Returns "name value" for those of `names` that are in `metrics`."""
    values = {name: metrics[name] for name in names if name in metrics}
    return [_FORMATS[name].format(_amount(v) if name == "perplexity" else v) for name, v in values.items()]


def _table(metrics: Mapping[str, float], previous: Mapping[str, float], names: Sequence[str]) -> str:
    """Returns a line for each of `names`: loss, standard error, perplexity, accuracy and change since `previous`.

    Columns without a value are omitted.
    """

    def cell(metric: str, name: str, digits: int) -> str:
        key = f"{metric}/{name}"
        return f"{metrics[key]:.{digits}f}" if key in metrics else ""

    rows = [["", "loss", "stderr", "perplexity", "acc", "change"]]
    for name in names:
        loss, before = metrics[f"loss/{name}"], previous.get(f"loss/{name}")
        change = "" if before is None else f"{loss - before:+.4f}"
        cells = [cell("loss", name, 4), cell("loss_stderr", name, 4), _amount(perplexity(loss))]
        rows.append([name, *cells, cell("accuracy", name, 3), change])
    first, *columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    padded.insert(0, [f"  {name:<{max(map(len, first))}}  " for name in first])
    return "\n".join("  ".join(cells) for cells in zip(*padded, strict=True))


def _amount(value: float) -> str:
    """Returns a number in about three digits: 12.3, 950, 12.3k, 1.23M."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
