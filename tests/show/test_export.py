"""train.show's page as HTML and SVG: well-formed, self-contained, escaped, the same for every terminal."""

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from show.page import DenoiserFacts
from show.rows import rows_of
from show.terminal import html_examples, html_page, svg_page
from tests.show.batches import encoder_decoder_chunk, page


class Checker(HTMLParser):
    """Fails for tags that do not close or that load something; collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        assert tag in ("html", "head", "meta", "title", "style", "body", "pre", "code", "span")
        assert {name for name, _ in attrs} <= {"lang", "charset", "class", "style"}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html):
    """The text of a page. Fails for a page that is not well-formed or loads anything."""
    parser = Checker()
    parser.feed(html)
    parser.close()
    assert not parser.open and not re.search(r"url\(|@import|https?:", html)
    return parser.text


def test_html_is_self_contained_and_escapes_text(ul2):
    chunk = encoder_decoder_chunk(
        ul2.tokenizer, ["<script>&'\"\nb"], ["[R]<script><extra_id_0>\nb</s>"], ["<extra_id_0>&'\"</s>"], [0], 40
    )
    shown = page(
        rows_of(ul2, chunk, 0, np.asarray([0]), 1), denoisers=[DenoiserFacts("<d>", "[R]", "1%", "<w>", "<c>", "<f>")]
    )
    text = parsed(html_page(dataclasses.replace(shown, title="</title>&{y}")))
    assert "</title>&{y}" in text and all(f"<{letter}>" in text for letter in "dwcf")
    assert "<script>&'\"↵\n" in text and "<extra_id_0>&'\"</s>" in text and "≠ 60.0%" in text
    examples = parsed(html_examples(shown))
    assert "<script>&'\"↵\n" in examples and "60.0%" not in examples


def test_svg_has_the_examples_and_the_attention_and_no_statistics(ul2, two_examples):
    shown = page(rows_of(ul2, two_examples, 33, np.asarray([0, 1]), 1))
    svg = svg_page(dataclasses.replace(shown, title="<t>&{y}"))
    root = ElementTree.fromstring(svg)
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and "<t>&{y}" in text
    assert "example 2: s" in text and "cross-attention" in text
    assert "statistics" not in text and "batch  2" not in text and "text-decoration: underline" in svg
    urls = re.findall(r"https?:[^\"]*|url\([^)]*\)", svg)
    assert all(url == "http://www.w3.org/2000/svg" or url.startswith("url(#") for url in urls)


@pytest.mark.parametrize("write", [html_page, svg_page])
def test_a_file_does_not_depend_on_the_terminal(ul2, two_examples, monkeypatch, write):
    shown = page(rows_of(ul2, two_examples, 0, np.asarray([0, 1]), 1))
    first = write(shown)
    for name, value in {"COLUMNS": "40", "NO_COLOR": "1", "TERM": "dumb", "COLORTERM": "truecolor"}.items():
        monkeypatch.setenv(name, value)
    assert write(shown) == first
