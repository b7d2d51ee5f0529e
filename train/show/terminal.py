"""The page of train.show on a terminal, or as plain text where there are no colours."""

import itertools

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.show.attention import AHEAD, HIDDEN, PADDING, SEEN, Picture, shrink
from train.show.counts import STATISTICS, Count, number
from train.show.page import Page
from train.show.rows import READ, SCORED, Row, Strip
from train.show.text import KINDS, Run
from train.show.wrap import STYLES, styled_lines

_GUTTER = 10  # columns before a text
_CELL_STYLES = {SEEN: "blue", AHEAD: "yellow"}
_MOST_CELLS = 48


def print_page(page: Page, console: Console) -> None:
    """Prints the page: what was asked, the examples, the first row's attention, and the counts."""
    plain = console.color_system is None
    _print_head(page, console)
    _line(console)
    _flowing(console, Text.assemble(("legend: ", "dim")), _legend(page, plain))
    for row in page.rows:
        _print_row(row, console, plain)
    if page.rows:
        _print_attention(max(page.rows, key=lambda row: row.num_segments), console, plain)
    _print_counts(page, console)


def _print_head(page: Page, console: Console) -> None:
    _line(console, Text(page.title, "bold"))
    width = max(len(name) for name, _ in page.facts) + 2
    for name, value in page.facts:
        _wrapped(console, Text.assemble((name.ljust(width), "dim")), Text(value))
    for warning in page.warnings:
        _wrapped(console, Text.assemble(("WARNING: ", "bold red")), Text(warning, "bold red"))
    _line(console)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    modes = any(denoiser.mode for denoiser in page.denoisers)
    for title in ("denoiser", *(["mode"] if modes else []), "share", "window", "what it does"):
        table.add_column(title, overflow="fold", justify="right" if title == "share" else "left")
    for one in page.denoisers:
        mode = [Text.assemble((one.mode, STYLES["mode"]))] if modes else []
        what = Text.assemble((one.objective, "bold"), f" {one.fields}" if one.fields else "")
        table.add_row(Text(one.name), *mode, one.share, one.window, what)
    console.print(table)


def _legend(page: Page, plain: bool) -> list[Text]:
    texts = [run for row in page.rows for one in row.examples for section in one.sections for run in section.runs]
    items = [Text("⟦scored⟧") if plain else Text.assemble(("scored", "underline"))]
    for kind, meaning in KINDS.items():
        samples = [run.text for run in texts if run.kind == kind]
        if kind in ("random", "kept") and samples and not plain:  # ordinary text, told apart by its colour
            items.append(Text.assemble((meaning, STYLES[kind])))
        elif kind not in ("text", "random", "kept") and samples:
            items.append(Text.assemble((samples[0], STYLES[kind]), (f" {meaning}", "dim")))
    for mark, meaning in (("↵", "newline"), ("░", "read"), ("█", "scored"), ("·", "padding")):
        items.append(Text.assemble(mark, (f" {meaning}", "dim")))
    return items


def _print_row(row: Row, console: Console, plain: bool) -> None:
    _line(console)
    examples = f"{row.num_segments} examples" if row.num_segments > 1 else "1 example"
    console.rule(Text(f"batch {row.batch}, row {row.row}: {examples}", "bold"), style="dim", align="left")
    for strip in row.strips:
        _print_strip(strip, console)
    for one in row.examples:
        _line(console)
        title = Text.assemble((f"example {one.number}: {one.denoiser}", "bold"))
        if one.mode:
            title.append(" ").append(one.mode, STYLES["mode"])
        if row.num_segments > 1:
            title.append(f"  segment {one.segment} of {row.num_segments}", "dim")
        _line(console, title)
        _wrapped(console, Text("  "), Text(one.facts, "dim"))
        for section in one.sections:
            _print_section(section.title, section.runs, console, plain)
    shown = {one.segment for one in row.examples}
    if row.num_segments > len(shown):
        _line(console, Text(f"  {row.num_segments - len(shown)} more in this row", "dim"))


def _print_strip(strip: Strip, console: Console) -> None:
    """A row in one line: read, scored or padding, and where segments begin."""
    facts = f" {strip.facts}"
    cells = max(min(console.width - _GUTTER - 1 - len(facts), len(strip.states), _MOST_CELLS), 1)
    at = np.arange(cells) * len(strip.states) // cells
    states, segments = strip.states[at], strip.segments[at]
    line = Text.assemble((f"{strip.title:>{_GUTTER - 2}} │", "dim"))
    for k in range(cells):
        if k and segments[k] != segments[k - 1] and segments[k]:
            line.append("│", "bold")
        else:
            line.append({READ: "░", SCORED: "█"}.get(int(states[k]), "·"), "" if states[k] else "dim")
    _line(console, line.append("│" + facts, "dim"))


def _print_section(title: str, texts: list[Run], console: Console, plain: bool) -> None:
    lines = styled_lines(texts, console.width - _GUTTER, plain=plain) if texts else [Text("(none)", "dim")]
    for i, line in enumerate(lines):
        head = (f"{title if i == 0 else '':>{_GUTTER - 2}} ", "bold")
        _line(console, Text.assemble(head, ("│", "dim"), line))


def _print_attention(row: Row, console: Console, plain: bool) -> None:
    _line(console)
    _line(console, Text(f"attention of batch {row.batch}, row {row.row}", "bold"))
    each = max((console.width - 2) // len(row.pictures) - 2, 8)
    longest = max(max(picture.cells.shape) for picture in row.pictures)
    factor = -(-longest // min(each, _MOST_CELLS))
    blocks = [_blocks(picture, factor, plain, each) for picture in row.pictures]
    for lines in itertools.zip_longest(*blocks, fillvalue=Text()):
        together = Text("  ")
        for line in lines:
            together.append_text(line).append(" " * (each + 2 - line.cell_len))
        together.rstrip()
        _line(console, together)
    seen, ahead = ("", "") if plain else (_CELL_STYLES[SEEN], _CELL_STYLES[AHEAD])
    items = [
        Text.assemble(("down: the position that looks", "dim")),
        Text.assemble(("across: what it sees", "dim")),
        Text.assemble(("█", seen), (" seen", "dim")),
        Text.assemble(("▒" if plain else "█", ahead), (" seen, and later", "dim")),
        Text.assemble(("· hidden", "dim")),
    ]
    _flowing(console, Text("  "), items)


def _blocks(picture: Picture, factor: int, plain: bool, width: int) -> list[Text]:
    """Lines of at most `width` columns; one character stands for two cells, one above the other."""
    queries, keys = picture.cells.shape
    lines = [Text(picture.title, "bold"), Text(f"{queries} x {keys}, 1:{factor}", "dim")]
    lines = [line for title in lines for line in title.wrap(Console(width=width), width)]
    cells = shrink(picture.cells, factor)
    cells = cells[: 1 + np.flatnonzero((cells != PADDING).any(axis=1)).max(initial=0)]
    cells = np.pad(cells, ((0, len(cells) % 2), (0, 0)), constant_values=PADDING)
    for upper, lower in zip(cells[::2], cells[1::2], strict=True):
        line = Text()
        for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
            line.append(*_block(above, below, plain))
        lines.append(line)
    return lines


def _block(above: int, below: int, plain: bool) -> tuple[str, str]:
    up, down = _CELL_STYLES.get(above), _CELL_STYLES.get(below)
    if not up and not down:
        return ("·", "dim") if HIDDEN in (above, below) else (" ", "")
    if plain:
        return {(True, True): "▒" if AHEAD in (above, below) else "█", (True, False): "▀"}.get(
            (bool(up), bool(down)), "▄"
        ), ""
    if not down:
        return "▀", up
    if not up:
        return "▄", down
    return ("█", up) if up == down else ("▀", f"{up} on {down}")


def _print_counts(page: Page, console: Console) -> None:
    _line(console)
    _line(console, Text.assemble(("counts", "bold"), f" over {page.counted}"))
    for statistics in _side_by_side(page, console.width):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("denoiser", no_wrap=True)
        for name in statistics:
            table.add_column(STATISTICS[name][0], justify="right", width=_width(page, name))
        for denoiser, counts in page.counts.items():
            table.add_row(Text(denoiser, "bold"), *(_measured(name, counts[name]) for name in statistics))
            expected = [_asked(name, counts[name]) for name in statistics]
            if any(expected):
                table.add_row(Text("  asked", "dim"), *(Text(cell, "dim") for cell in expected))
        console.print(table)
    off = any(one.is_off for counts in page.counts.values() for one in counts.values())
    if off:
        _line(
            console,
            Text.assemble(
                ("≠", "bold red"), " more than a tenth, and more than rounding explains, away from what was asked"
            ),
        )
    for note in page.notes:
        _wrapped(console, Text.assemble(("note: ", "bold")), Text(note))


def _side_by_side(page: Page, width: int) -> list[list[str]]:
    """The statistics in tables that are no wider than the terminal."""
    names = max(len(name) for name in ("denoiser", *page.counts))
    tables, left = [[]], width - names
    for name in page.statistics:
        needed = 2 + _width(page, name)
        if needed > left and tables[-1]:
            tables.append([])
            left = width - names
        tables[-1].append(name)
        left -= needed
    return tables


def _width(page: Page, name: str) -> int:
    counts = [one[name] for one in page.counts.values()]
    cells = [text for one in counts for text in (_measured(name, one).plain, _asked(name, one))]
    return max(map(len, [*STATISTICS[name][0].split(), *cells]))


def _asked(name: str, count: Count) -> str:
    return "" if count.expected is None else number(name, count.expected)


def _measured(name: str, count: Count) -> Text:
    return Text(("≠ " if count.is_off else "") + number(name, count.measured), "bold red" if count.is_off else "")


def _wrapped(console: Console, head: Text, text: Text) -> None:
    """Prints `text` behind `head`, its further lines behind as much space."""
    for i, line in enumerate(text.wrap(console, console.width - head.cell_len)):
        _line(console, head.copy().append_text(line) if i == 0 else Text(" " * head.cell_len).append_text(line))


def _flowing(console: Console, head: Text, items: list[Text]) -> None:
    """Prints `items` behind `head`, as many in a line as there is room for."""
    line, begin = head.copy(), head.cell_len
    for item in items:
        if line.cell_len > begin and line.cell_len + 2 + item.cell_len > console.width:
            _line(console, line)
            line = Text(" " * begin)
        line.append("  " if line.cell_len > begin else "").append_text(item)
    _line(console, line)


def _line(console: Console, text: Text | str = "") -> None:
    console.print(text, soft_wrap=True)
