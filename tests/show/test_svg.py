"""train.show's examples as an SVG picture: well-formed, self-contained, the same for every terminal."""

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np

from show.rows import rows_of
from show.svg import svg_page
from tests.show.batches import encoder_decoder_chunk, page


def test_svg_has_the_examples_and_the_attention_and_no_statistics(ul2, two_examples):
    svg = svg_page(page(rows_of(ul2, two_examples, 33, np.asarray([0, 1]), 1)))
    root = ElementTree.fromstring(svg)
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root[0].text == "a title"
    assert "example 2: s" in text and "cross-attention" in text
    assert "statistics" not in text and "batch  2" not in text
    assert "text-decoration: underline" in svg
    urls = re.findall(r"https?:[^\"]*|url\([^)]*\)", svg)
    assert all(url == "http://www.w3.org/2000/svg" or url.startswith("url(#") for url in urls)


def test_svg_escapes_text(ul2):
    chunk = encoder_decoder_chunk(ul2.tokenizer, ["<b>&{x}"], ["<b></s>"], ["&{x}</s>"], [0])
    shown = page(rows_of(ul2, chunk, 0, np.asarray([0]), 1))
    root = ElementTree.fromstring(svg_page(dataclasses.replace(shown, title="<t>&{y}")))
    assert root[0].text == "<t>&{y}" and "<b>&{x}" in "".join(root.itertext())


def test_svg_does_not_depend_on_the_terminal(ul2, two_examples, monkeypatch):
    shown = page(rows_of(ul2, two_examples, 0, np.asarray([0, 1]), 1))
    first = svg_page(shown)
    for name, value in {"COLUMNS": "40", "NO_COLOR": "1", "TERM": "dumb", "COLORTERM": "truecolor"}.items():
        monkeypatch.setenv(name, value)
    assert svg_page(shown) == first
