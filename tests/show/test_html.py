"""train.show's page as HTML: well-formed, self-contained, escaped."""

from html.parser import HTMLParser

import numpy as np

from show.facts import DenoiserFacts
from show.html import html_page
from show.rows import rows_of
from show.text import KINDS
from tests.show.batches import encoder_decoder_chunk, page


class Checker(HTMLParser):
    """Fails for tags that do not close; collects the URLs that the page loads, and its text."""

    VOID = ("meta", "img", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "object")
        self.loaded += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html):
    """The page's URLs and text. Fails for a page that is not well-formed or loads anything."""
    parser = Checker()
    parser.feed(html)
    parser.close()
    assert not parser.open
    assert all(url.startswith("data:image/png;base64,") for url in parser.loaded)
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    return parser


def test_html_is_self_contained_and_escapes_text(ul2):
    hostile = "<script>&'\"\nb"
    chunk = encoder_decoder_chunk(
        ul2.tokenizer, [hostile], ["[R]<script><extra_id_0>\nb</s>"], ["<extra_id_0>&'\"</s>"], [0], width=40
    )
    rows = rows_of(ul2, chunk, 0, np.asarray([0]), 1)
    html = html_page(page(rows, denoisers=[DenoiserFacts("<d>", "[R]", "100.0%", "<w>", "<c>", "<f>")]))
    parser = parsed(html)
    assert "http:" not in html and "https:" not in html
    assert len(parser.loaded) == 3 and "<script>&'\"↵\nb" in parser.text
    assert '<u><wbr><span class="sentinel">&lt;extra_id_0&gt;</span>&amp;&#x27;&quot;' in html
    assert all(f"&lt;{letter}&gt;" in html for letter in "dwcf")
    assert '<td class="n off">≠ 60.0%<small>15.0%</small></td>' in html


def test_every_kind_has_a_style():
    html = html_page(page([]))
    assert all(f".{kind}" in html for kind in KINDS if kind != "text")
