"""Prints the page of train.show, in plain text if the console has no colors."""

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from command.plural import plural
from show.blocks import picture_legend, picture_lines
from show.page import Page
from show.rows import NOT_SCORED, SCORED, Row, Section, StackRow
from show.statistics import Statistic, formatted, heading
from show.text import KINDS, ORDINARY
from show.wrap import STYLES, styled_lines

_GUTTER = 10  # columns to the left of a text
_MAX_CELLS = 48


def print_page(page: Page, console: Console) -> None:
    """Prints the facts, the denoisers, the examples, the attention masks of a row, and the statistics."""
    _line(console, Text(page.title, "bold"))
    width = max(len(name) for name, _ in page.facts) + 2
    for name, value in page.facts:
        _wrapped(console, Text.assemble((name.ljust(width), "dim")), Text(value))
    for warning in page.warnings:
        _wrapped(console, Text.assemble(("WARNING: ", "bold red")), Text(warning, "bold red"))
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
    _flowing(console, Text.assemble(("legend: ", "dim")), _legend(page, plain))
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
        mode = [Text(denoiser.mode, STYLES["mode"])] if has_modes else []
        objective = Text.assemble((denoiser.objective, "bold"), f" {denoiser.fields}" if denoiser.fields else "")
        table.add_row(Text(denoiser.name), *mode, denoiser.share, denoiser.window, objective)
    console.print(table)


def _legend(page: Page, plain: bool) -> list[Text]:
    items = [Text("⟦scored⟧") if plain else Text("scored", "underline")]
    for kind, sample in page.samples.items():
        if kind not in ORDINARY:
            items.append(Text.assemble((sample, STYLES[kind]), (f" {KINDS[kind]}", "dim")))
        elif kind != "text" and not plain:  # ordinary text of another color
            items.append(Text(KINDS[kind], STYLES[kind]))
    for mark, meaning in (("↵", "newline"), ("█", "scored"), ("░", "not scored"), ("·", "padding")):
        items.append(Text.assemble(mark, (f" {meaning}", "dim")))
    return items


def _print_row(row: Row, console: Console, plain: bool) -> None:
    console.rule(Text(row.title, "bold"), style="dim", align="left")
    for stack_row in row.stack_rows:
        _print_stack_row(stack_row, console)
    for example in row.examples:
        _line(console)
        title = Text.assemble((f"example {example.number}: {example.denoiser}", "bold"))
        if example.mode:
            title.append(" ").append(example.mode, STYLES["mode"])
        if row.num_segments > 1:
            title.append(f"  segment {example.segment} of {row.num_segments}", "dim")
        _line(console, title)
        _wrapped(console, Text("  "), Text(example.facts, "dim"))
        for section in example.sections:
            _print_section(section, console, plain)
    if row.num_omitted:
        _line(console, Text(f"  {plural(row.num_omitted, 'more example')} in this row", "dim"))


def _print_stack_row(stack_row: StackRow, console: Console) -> None:
    """Prints one line: the state of each position, and where segments begin."""
    facts, length = f" {stack_row.facts}", len(stack_row.states)
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
    runs, width = section.runs, console.width - _GUTTER
    lines = styled_lines(runs, width, plain=plain) if runs else [Text("(none)", "dim")]
    for i, line in enumerate(lines):
        head = (f"{'' if i else section.title:>{_GUTTER - 2}} ", "bold")
        _line(console, Text.assemble(head, ("│", "dim"), line))


def _print_attention(row: Row, console: Console, plain: bool) -> None:
    _line(console, Text(f"attention of batch {row.batch}, row {row.row}", "bold"))
    for line in picture_lines(row.pictures, console.width - 2, plain=plain):
        _line(console, Text("  ").append_text(line))
    _flowing(console, Text("  "), picture_legend(plain=plain))


def _print_statistics(page: Page, console: Console) -> None:
    _line(console, Text.assemble(("statistics", "bold"), f" of {page.measured_on}"))
    for columns in _tables_of_columns(page, console.width):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("denoiser", no_wrap=True)
        for name in columns:
            table.add_column(heading(name), justify="right", width=_column_width(page, name))
        for denoiser, statistics in page.statistics.items():
            table.add_row(Text(denoiser, "bold"), *(_measured(name, statistics[name]) for name in columns))
            expected = [_expected(name, statistics[name]) for name in columns]
            if any(expected):
                table.add_row(Text("  expected", "dim"), *(Text(cell, "dim") for cell in expected))
        console.print(table)
    if any(statistic.differs for table in page.statistics.values() for statistic in table.values()):
        explanation = "differs from the expected value by more than a tenth, and by more than rounding explains"
        _wrapped(console, Text.assemble(("≠ ", "bold red")), Text(explanation))
    for note in page.notes:
        _wrapped(console, Text.assemble(("note: ", "bold")), Text(note))


def _tables_of_columns(page: Page, width: int) -> list[list[str]]:
    """Returns the statistics in groups whose tables are at most `width` columns wide."""
    names = max(len(name) for name in ("denoiser", "  expected", *page.statistics))
    tables, remaining = [[]], width - names
    for name in page.columns:
        needed = 2 + _column_width(page, name)
        if needed > remaining and tables[-1]:
            tables.append([])
            remaining = width - names
        tables[-1].append(name)
        remaining -= needed
    return tables


def _column_width(page: Page, name: str) -> int:
    """Returns the width of the longest word of the heading, or of the longest value, of statistic `name`."""
    cells = heading(name).split()
    for table in page.statistics.values():
        cells += [_measured(name, table[name]).plain, _expected(name, table[name])]
    return max(map(len, cells))


def _measured(name: str, statistic: Statistic) -> Text:
    mark, style = ("≠ ", "bold red") if statistic.differs else ("", "")
    return Text(mark + formatted(name, statistic.measured), style)


def _expected(name: str, statistic: Statistic) -> str:
    return "" if statistic.expected is None else formatted(name, statistic.expected)


def _wrapped(console: Console, head: Text, text: Text) -> None:
    """Prints `head` and `text`, whose further lines are indented by the width of `head`."""
    for i, line in enumerate(text.wrap(console, console.width - head.cell_len)):
        _line(console, head.copy().append_text(line) if i == 0 else Text(" " * head.cell_len).append_text(line))


def _flowing(console: Console, head: Text, items: list[Text]) -> None:
    """Prints `head` and `items`, as many items in a line as fit."""
    line, indent = head.copy(), head.cell_len
    for item in items:
        if line.cell_len > indent and line.cell_len + 2 + item.cell_len > console.width:
            _line(console, line)
            line = Text(" " * indent)
        line.append("  " if line.cell_len > indent else "").append_text(item)
    _line(console, line)


def _line(console: Console, text: Text | str = "") -> None:
    console.print(text, soft_wrap=True)
