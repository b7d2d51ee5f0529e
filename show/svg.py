"""The examples of train.show as an SVG picture of a terminal, for documents.

docs/show.svg is written by:

    python -m train.show --config=configs/ul2.py --config.data.examples_per_row=4 --config.seed=334
                         --num_examples=4 --svg=docs/show.svg
"""

import io
from html import escape

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from show.page import Page
from show.terminal import print_examples

_WIDTH = 110  # columns
_HEIGHT = 25  # not read, but without it rich ignores the width in a dumb terminal
_THEME = TerminalTheme(
    background=(20, 22, 26),
    foreground=(227, 230, 234),
    normal=[
        (20, 22, 26),  # black
        (255, 128, 120),  # red
        (98, 208, 143),  # green
        (226, 150, 40),  # yellow
        (59, 118, 214),  # blue
        (240, 139, 224),  # magenta
        (90, 200, 210),  # cyan
        (227, 230, 234),  # white
    ],
)
# rich fills the fields in braces. The fonts are the reader's: a picture in a document cannot load fonts.
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px/{line_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}}
{styles}
</style>
<defs>
{lines}
</defs>
<rect width="100%" height="100%" rx="10" fill="#14161a"/>
<g transform="translate(9, 18)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg_page(page: Page) -> str:
    """Returns the SVG file as text: the title, the examples and the attention masks, without facts and statistics.

    The picture depends on the page alone, not on the terminal.
    """
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_WIDTH,
        height=_HEIGHT,
        force_terminal=True,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(Text(page.title, "bold"), soft_wrap=True)
    print_examples(page, console)
    svg = console.export_svg(title=page.title, theme=_THEME, code_format=_FORMAT)
    return svg.replace("TITLE", escape(page.title), 1).replace("><", ">\n<")
