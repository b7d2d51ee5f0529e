"""What a person sees of a run: a live display on a terminal, plain lines in a file or a pipe."""

import math
from collections.abc import Mapping
from typing import Self

import jax
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from train.metrics import perplexity

_EVAL = ("loss", "perplexity", "accuracy", "bits_per_byte")


class Display:
    """Shows a run of `total_steps` steps that starts, or continues, after `start_step` steps.

        with Display(1000, 0) as display:
            display.update(step)            # after each step
            display.train(step, metrics)    # each log_every: metrics as train.metrics reports them
            display.eval(step, metrics)     # stays on the screen, with the loss of each denoiser

    On a terminal a bar, the latest numbers and the latest loss of each denoiser are kept in place below everything
    else that is printed. Elsewhere `train` prints one line and `update` nothing. Processes other than 0 print nothing.
    """

    def __init__(self, total_steps: int, start_step: int, *, console: Console | None = None):
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._console.quiet = jax.process_index() != 0
        self._is_live = self._console.is_interactive and not self._console.quiet
        self._total = total_steps
        self._train: Mapping[str, float] = {}
        self._eval: Mapping[str, float] = {}
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed_text]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=600,  # several steps, however slow, and the evaluations between them
        )
        self._task = self._progress.add_task("", total=total_steps, completed=start_step, speed_text="", left="")
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._is_live:
            self._live.stop()

    def update(self, step: int) -> None:
        """`step` steps are done."""
        self._progress.update(self._task, completed=step)

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of training at `step`; what is not among `metrics` is not shown."""
        self._train = metrics
        speed = _amount(metrics["tokens_per_second"]) + " tok/s" if "tokens_per_second" in metrics else ""
        self._progress.update(self._task, completed=step, speed_text=speed)
        if not self._is_live:
            width = len(str(self._total))
            cells = [f"step {step:>{width}}/{self._total}", *_cells(metrics, ("loss", "accuracy", "learning_rate"))]
            cells += [speed.rjust(11)] if speed else []
            self._print("  ".join([*cells, self._left()]).rstrip())

    def eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of held-out evaluation at `step`, beside those of the evaluation before it."""
        cells = _cells(metrics, _EVAL)
        self._print("  ".join([f"eval at step {step}:", *cells]), style="bold")
        own = [f"{name} {value:.4g}" for name, value in metrics.items() if name not in _EVAL and "/" not in name]
        if own:  # the objective's
            self._print("  " + "  ".join(own))
        names = [name for name in metrics if name.startswith("loss/")]
        if len(names) > 1:
            table = Table(box=None, padding=(0, 2), header_style="dim")
            table.add_column()
            has_accuracy = any(name.startswith("accuracy/") for name in metrics)
            for header in ("loss", "perplexity", *["acc"] * has_accuracy, "change"):
                table.add_column(header, justify="right", min_width=8)
            for name in names:
                loss, before, short = metrics[name], self._eval.get(name), name.removeprefix("loss/")
                accuracy = f"{metrics[f'accuracy/{short}']:.3f}" if f"accuracy/{short}" in metrics else ""
                table.add_row(
                    Text(short),
                    f"{loss:.4f}",
                    _amount(perplexity(loss)),
                    *[accuracy] * has_accuracy,
                    "" if before is None else f"{loss - before:+.4f}",
                )
            self._console.print(table)
        self._eval = metrics

    def message(self, text: str) -> None:
        """Prints `text`, which stays on the screen."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Prints `text` so that it is not overlooked."""
        self._print(f"WARNING: {text}", style="bold yellow")

    def _print(self, text: str, style: str = "") -> None:
        # Only a terminal has a width that lines must be broken at.
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)

    def _left(self) -> str:
        seconds = self._progress.tasks[0].time_remaining
        if not seconds:  # no estimate yet, or done
            return ""
        minutes, seconds = divmod(math.ceil(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return f"{clock} left"

    def _render(self) -> RenderableType:
        self._progress.update(self._task, left=self._left())
        parts: list[RenderableType] = [self._progress.get_renderable()]
        shown = ("loss", "perplexity", "accuracy", "learning_rate", "grad_norm")
        if cells := _cells(self._train, shown):
            parts.append(Text("  ".join(cells)))
        losses = [name for name in self._train if name.startswith("loss/")]
        if len(losses) > 1:
            cells = [f"{name.removeprefix('loss/')} {self._train[name]:.3f}" for name in losses]
            parts.append(Columns([Text(cell, "cyan") for cell in cells], padding=(0, 2)))
        return Group(*parts)


_FORMATS = {
    "loss": "loss {:.4f}",
    "perplexity": "perplexity {}",
    "accuracy": "acc {:.3f}",
    "bits_per_byte": "bits/byte {:.3f}",
    "learning_rate": "lr {:.2e}",
    "grad_norm": "grad norm {:.3g}",
}


def _cells(metrics: Mapping[str, float], names: tuple[str, ...]) -> list[str]:
    values = {name: metrics[name] for name in names if name in metrics}
    return [_FORMATS[name].format(_amount(v) if name == "perplexity" else v) for name, v in values.items()]


def _amount(value: float) -> str:
    """Three digits or so: 12.3, 950, 12.3k, 1.23M."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
