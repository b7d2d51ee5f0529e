"""The page of train.show on a console: in plain text if the console has no colors, and recorded as HTML or SVG."""

import io
import itertools
import re
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from command.program import plural, visible
from show.attention import picture_legend, picture_table
from show.page import Page
from show.rows import KINDS, NOT_SCORED, ORDINARY, SCORED, Row, Run, Section, StackRow, split_marks
from show.statistics import Statistic, formatted

STYLES = {
    "text": "",
    "sentinel": "bold magenta",
    "mask": "bold black on yellow",
    "mode": "bold white on blue",
    "eos": "bold green",
    "special": "green",
    "random": "bold red",
    "kept": "bold blue",
}
AS_WRITTEN = {"highlight": False, "markup": False, "emoji": False}  # options of rich's Console for text that is data
_BRACKETS = "⟦", "⟧"  # around scored tokens, if the console cannot underline


def styled_text(runs: list[Run], *, plain: bool) -> Text:
    """Returns the text of `runs`, styled by kind, with scored tokens underlined or, if `plain`, in brackets."""
    text = Text()
    for scored, group in itertools.groupby(runs, key=lambda run: run.scored):
        part = Text()
        for run in group:
            style = STYLES[run.kind] + (" underline" if scored else "")
            for piece, is_mark in split_marks(run.text) if run.kind in ORDINARY else [(visible(run.text), False)]:
                # Three spaces replace a tab, whose width depends on the terminal.
                part.append(piece.replace("\t", "   "), f"{style} dim" if is_mark else style)
        if plain and scored:
            is_ended = part.plain.endswith("\n")
            part = Text.assemble(_BRACKETS[0], part[:-1] if is_ended else part, _BRACKETS[1] + "\n" * is_ended)
        text.append_text(part)
    return text


_GUTTER = 10  # columns to the left of a text
_MAX_CELLS = 48  # of a row of positions
_COLUMN = 13  # the width of a statistic's column, with the space after it, at most


def print_page(page: Page, console: Console) -> None:
    """Prints the facts, the denoisers, the examples, the attention masks of a row, and the statistics."""
    _line(console, Text(visible(page.title), "bold"))
    width = max(len(name) for name, _ in page.facts) + 2
    for name, value in page.facts:
        _wrapped(console, Text.assemble((name.ljust(width), "dim")), Text(visible(value)))
    for warning in page.warnings:
        _wrapped(console, Text.assemble(("WARNING: ", "bold red")), Text(visible(warning), "bold red"))
    _line(console)
    _print_denoisers(page, console)
    _line(console)
    print_examples(page, console)
    if page.statistics:
        _line(console)
        _print_statistics(page, console)


def print_examples(page: Page, console: Console) -> None:
    """Prints the examples, and the attention masks of the row with the most examples."""
    plain = console.color_system is None or console.no_color
    _wrapped(console, Text.assemble(("legend: ", "dim")), Text("  ").join(_legend(page, plain)))
    for row in page.rows:
        _line(console)
        _print_row(row, console, plain)
    if page.rows:
        _line(console)
        _print_attention(max(page.rows, key=lambda row: row.num_segments), console, plain)


def _print_denoisers(page: Page, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    has_modes = any(denoiser.mode for denoiser in page.denoisers)
    for title in ("denoiser", *(["mode"] if has_modes else []), "share", "window", "objective"):
        table.add_column(title, overflow="fold", justify="right" if title == "share" else "left")
    for denoiser in page.denoisers:
        mode = [Text(visible(denoiser.mode), STYLES["mode"])] if has_modes else []
        fields = visible(f" {denoiser.fields}" if denoiser.fields else "")
        objective = Text.assemble((denoiser.objective, "bold"), fields)
        table.add_row(Text(visible(denoiser.name)), *mode, denoiser.share, denoiser.window, objective)
    console.print(table)


def _legend(page: Page, plain: bool) -> list[Text]:
    items = [Text("⟦scored⟧") if plain else Text("scored", "underline")]
    for kind, sample in page.samples.items():
        if kind not in ORDINARY:
            items.append(Text.assemble((visible(sample), STYLES[kind]), (f" {KINDS[kind]}", "dim")))
        elif kind != "text" and not plain:  # ordinary text of another color
            items.append(Text(KINDS[kind], STYLES[kind]))
    for mark, meaning in (("↵", "newline"), ("█", "scored"), ("░", "not scored"), ("·", "padding")):
        items.append(Text.assemble(mark, (f" {meaning}", "dim")))
    return items


def _print_row(row: Row, console: Console, plain: bool) -> None:
    title = f"batch {row.batch}, row {row.row}: {plural(row.num_segments, 'example')}"
    console.rule(Text(title, "bold"), style="dim", align="left")
    for stack_row in row.stack_rows:
        _print_stack_row(stack_row, console)
    for example in row.examples:
        _line(console)
        title = Text.assemble((f"example {example.number}: {visible(example.denoiser)}", "bold"))
        if example.mode:
            title.append(" ").append(visible(example.mode), STYLES["mode"])
        if row.num_segments > 1:
            title.append(f"  segment {example.segment} of {row.num_segments}", "dim")
        _line(console, title)
        _wrapped(console, Text("  "), Text(visible(example.facts), "dim"))
        for section in example.sections:
            _print_section(section, console, plain)
    if omitted := row.num_segments - len(row.examples):
        _line(console, Text(f"  {plural(omitted, 'more example')} in this row", "dim"))


def _print_stack_row(stack_row: StackRow, console: Console) -> None:
    """Prints one line: the state of each position, and where segments begin."""
    length = len(stack_row.states)
    facts = f" {np.count_nonzero(stack_row.states)} of {length} positions used"
    cells = max(min(console.width - _GUTTER - 1 - len(facts), length, _MAX_CELLS), 1)
    sampled = np.arange(cells) * length // cells
    states, segment_ids = stack_row.states[sampled], stack_row.segment_ids[sampled]
    line = Text.assemble((f"{stack_row.stack:>{_GUTTER - 2}} │", "dim"))
    for k in range(cells):
        if k and segment_ids[k] != segment_ids[k - 1] and segment_ids[k]:
            line.append("│", "bold")
        else:
            line.append({NOT_SCORED: "░", SCORED: "█"}.get(int(states[k]), "·"), "" if states[k] else "dim")
    _line(console, line.append("│" + facts, "dim"))


def _print_section(section: Section, console: Console, plain: bool) -> None:
    text = styled_text(section.runs, plain=plain) if section.runs else Text("(none)", "dim")
    for i, line in enumerate(text.wrap(console, max(console.width - _GUTTER, 1))):
        head = (f"{'' if i else section.title:>{_GUTTER - 2}} ", "bold")
        _line(console, Text.assemble(head, ("│", "dim"), line))


def _print_attention(row: Row, console: Console, plain: bool) -> None:
    _line(console, Text(f"attention of batch {row.batch}, row {row.row}", "bold"))
    console.print(Padding(picture_table(row.pictures, console.width - 2, plain=plain), (0, 0, 0, 2)))
    _wrapped(console, Text("  "), Text("  ").join(picture_legend(plain=plain)))


def _print_statistics(page: Page, console: Console) -> None:
    _line(console, Text.assemble(("statistics", "bold"), f" of {page.measured_on}"))
    names = max(len(name) for name in ("  expected", *page.statistics))
    at_once = max((console.width - names) // _COLUMN, 1)
    for begin in range(0, len(page.columns), at_once):
        columns = page.columns[begin : begin + at_once]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("denoiser", no_wrap=True)
        for name in columns:
            table.add_column(name.replace("_", " "), justify="right")
        for denoiser, statistics in page.statistics.items():
            table.add_row(Text(visible(denoiser), "bold"), *(_measured(name, statistics[name]) for name in columns))
            expected = [_expected(name, statistics[name]) for name in columns]
            if any(expected):
                table.add_row(Text("  expected", "dim"), *(Text(cell, "dim") for cell in expected))
        console.print(table)
    if any(statistic.differs for table in page.statistics.values() for statistic in table.values()):
        explanation = "differs from the expected value by more than a tenth, and by more than rounding explains"
        _wrapped(console, Text.assemble(("≠ ", "bold red")), Text(explanation))
    for note in page.notes:
        _wrapped(console, Text.assemble(("note: ", "bold")), Text(note))


def _measured(name: str, statistic: Statistic) -> Text:
    mark, style = ("≠ ", "bold red") if statistic.differs else ("", "")
    return Text(mark + formatted(name, statistic.measured), style)


def _expected(name: str, statistic: Statistic) -> str:
    return "" if statistic.expected is None else formatted(name, statistic.expected)


def _wrapped(console: Console, head: Text, text: Text) -> None:
    """Prints `head` and `text`, whose further lines are indented by the width of `head`."""
    for i, line in enumerate(text.wrap(console, max(console.width - head.cell_len, 1))):
        _line(console, head.copy().append_text(line) if i == 0 else Text(" " * head.cell_len).append_text(line))


def _line(console: Console, text: Text | str = "") -> None:
    console.print(text, soft_wrap=True)


_WIDTH = 110  # columns of a recorded page
# In rich's SVG: a picture in a document cannot load fonts, and the reader has a monospaced one.
_FONTS = re.compile(r"<!--.*?-->|@font-face \{.*?\}", re.DOTALL)


def svg_page(page: Page) -> str:
    """Returns the title, the examples and the attention masks as an SVG picture, without facts and statistics."""
    return _FONTS.sub("", _recorded(page, print_examples).export_svg(title=visible(page.title), theme=SVG_EXPORT_THEME))


def html_page(page: Page) -> str:
    """Returns the page as a self-contained HTML file."""
    return _recorded(page, print_page).export_html(theme=SVG_EXPORT_THEME)


def html_examples(page: Page) -> str:
    """Returns the examples and the attention masks as a <pre> element, with its styles in it."""
    style = "background: {background}; color: {foreground}; padding: 1em; overflow-x: auto"
    return _recorded(page, print_examples).export_html(
        theme=SVG_EXPORT_THEME, inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
    )


def _recorded(page: Page, print_part: Callable[[Page, Console], None]) -> Console:
    """Returns a console that recorded a part of the page. It depends on the page alone, not on the terminal."""
    # The height is not read, but without it rich ignores the width in a dumb terminal.
    size = {"width": _WIDTH, "height": 25, "legacy_windows": False}
    colors = {"force_terminal": True, "color_system": "standard", "no_color": False}
    console = Console(file=io.StringIO(), record=True, **size, **colors, **AS_WRITTEN)
    if print_part is print_examples:
        _line(console, Text(visible(page.title), "bold"))
    print_part(page, console)
    return console
