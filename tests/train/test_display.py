import io
import math

import jax
import pytest
from rich.console import Console
from rich.text import Text

from train.display import Display

METRICS = {
    "loss": 5.25,
    "perplexity": math.exp(5.25),
    "accuracy": 0.125,
    "learning_rate": 0.004,
    "grad_norm": 1.5,
    "tokens_per_second": 12345.6,
    "loss/r_short": 4.0,
    "loss/[S]": 6.0,
}


def shown(use, *, terminal=False, total=1000, start=0, clock=None, rows=None):
    """What a Display writes to a console of 80 columns when `use` is called with it."""
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=80,
        height=30,
        markup=False,
        color_system=None,
        get_time=clock,
    )
    with Display(total, start, console=console, rows=rows) as display:
        use(display)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_of_others_are_escaped(terminal):
    hostile = "a\x1b[2Jb\x9bc\u202ed\re\nf\tg"
    for how in ("message", "warn"):
        text = shown(lambda display, how=how: getattr(display, how)(hostile), terminal=terminal)
        assert "a\\x1b[2Jb\\x9bc\\u202ed\\re\nf" in text


def test_without_a_terminal_training_is_one_aligned_line_each_time():
    def use(display):
        for step, loss in ((20, 5.25), (1000, 4.5)):
            display.update(step)
            display.train(step, METRICS | {"loss": loss})

    assert shown(use) == (
        "step   20/1000  loss 5.2500  acc 0.125  lr 4.00e-03  12.3k tok/s\n"
        "step 1000/1000  loss 4.5000  acc 0.125  lr 4.00e-03  12.3k tok/s\n"
    )


def test_the_utilization_of_the_device_and_a_wait_for_batches_are_shown():
    values = METRICS | {"mfu": 0.4149, "data_wait_fraction": 0.12}
    assert shown(lambda display: display.train(20, values)).endswith("12.3k tok/s  mfu 41%  data wait 12%\n")
    assert "wait" not in shown(lambda display: display.train(20, values | {"data_wait_fraction": 0.04}))


def test_an_evaluation_is_a_table_with_the_change_since_the_last():
    def use(display):
        display.eval(250, {"loss": 3.0, "perplexity": 20.086, "accuracy": 0.25, "loss/r": 2.0, "loss/[S]": 5.0})
        metrics = {"loss": 2.5, "perplexity": 12.182, "bits_per_byte": 3.6, "loss/r": 1.5, "loss/[S]": 6.0}
        display.eval(500, metrics | {"accuracy/r": 0.5, "accuracy/[S]": 0.125})

    assert shown(use).splitlines() == [
        "eval at step 250:  loss 3.0000  perplexity 20.1  acc 0.250",
        "           loss  perplexity",
        "  r      2.0000        7.39",
        "  [S]    5.0000         148",
        "eval at step 500:  loss 2.5000  perplexity 12.2  bits/byte 3.600",
        "           loss  perplexity    acc   change",
        "  r      1.5000        4.48  0.500  -0.5000",
        "  [S]    6.0000         403  0.125  +1.0000",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_names_are_never_cut(terminal):
    names = ["span_corruption_of_the_web", "multi_token_prediction"]
    metrics = {"loss": 3.0} | {f"{metric}/{name}": 2.0 for metric in ("loss", "loss_stderr") for name in names}
    metrics |= {f"accuracy/{name}": 0.5 for name in names}

    def use(display):
        for step in (1, 2):
            display.eval(step, metrics)

    text = Text.from_ansi(shown(use, terminal=terminal)).plain
    for name in names:
        assert text.count(f"{name}  ") == 2


def test_other_metrics_are_in_a_line_below_the_loss():
    metrics = {"loss": 2.5, "loss/nsp": 2.5, "pair_accuracy": 0.75, "unknown_fraction": 0.0}
    lines = shown(lambda display: display.eval(10, metrics)).splitlines()
    assert lines == ["eval at step 10:  loss 2.5000", "  pair_accuracy 0.75"]


@pytest.mark.parametrize("terminal", [False, True])
def test_messages_keep_their_brackets(terminal):
    def use(display):
        display.message("mode token [R] of [bold]a[/bold]")
        display.warn("JAX runs on the CPU")

    text = shown(use, terminal=terminal)
    assert "mode token [R] of [bold]a[/bold]" in text
    assert "WARNING: JAX runs on the CPU" in text


def test_a_terminal_has_a_bar_below_the_lines():
    def use(display):
        display.train(20, METRICS)
        display.update(20)

    lines = [Text.from_ansi(line).plain.rstrip() for line in shown(use, terminal=True).splitlines()]
    assert any(line.startswith("step   20/1000  loss 5.2500") for line in lines)
    last = [line for line in lines if line][-1]
    assert " 20/1000 " in last and "-:--:--" in last and max(map(len, lines)) <= 80


@pytest.mark.parametrize("terminal", [False, True])
def test_other_processes_show_nothing(terminal, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)

    def use(display):
        display.message("hello")
        display.warn("hello")
        display.train(1, METRICS)
        display.eval(1, METRICS)

    assert shown(use, terminal=terminal) == ""
