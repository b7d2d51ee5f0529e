"""A page of train.show: text in a terminal, HTML in a notebook."""

import io
import shutil
from html import escape

from rich.console import Console

from show.page import Page
from show.terminal import html_page, print_page


class Shown:
    """What `Model.show` returns. Its text is that of train.show, and a notebook displays its HTML."""

    def __init__(self, page: Page):
        self.page = page

    def __str__(self) -> str:
        console = Console(
            file=io.StringIO(),
            width=shutil.get_terminal_size().columns,
            highlight=False,
            markup=False,
            emoji=False,
        )
        print_page(self.page, console)
        return console.file.getvalue()

    __repr__ = __str__

    def to_html(self) -> str:
        """Returns the page as a self-contained HTML file."""
        return html_page(self.page)

    def _repr_html_(self) -> str:
        # In a frame, so that the page's styles do not change the notebook's.
        style = "width:100%;height:640px;border:0"
        return f'<iframe srcdoc="{escape(self.to_html())}" style="{style}" loading="lazy"></iframe>'
