"""train.show on batches written by hand: what it prints, counts and draws."""

import io
import itertools
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from objectives.batch import Windows
from tests.train.tiny_experiments import tiny_experiment
from train.show_attention import AHEAD, HIDDEN, PADDING, SEEN, pictures, png, shrink
from train.show_counts import Count, Totals, beside_asked, measure, notes
from train.show_data import Chunk, take_apart
from train.show_html import html_page
from train.show_page import DenoiserFacts, Page, pick
from train.show_rows import rows_of
from train.show_terminal import print_page
from train.show_text import KINDS, Run, runs, visible
from train.show_wrap import styled_lines


def lay(side, tokenizer, texts, width):
    """Fields of one row that holds `texts`, one segment each."""
    tokens, segments, positions = np.zeros((3, 1, width), np.int32)
    at = 0
    for segment, text in enumerate(texts, start=1):
        ids = tokenizer.encode_with_specials(text)
        here = slice(at, at + len(ids))
        tokens[0, here], segments[0, here], positions[0, here] = ids, segment, np.arange(len(ids))
        at += len(ids)
    return tokens, {f"{side}_segment_ids": segments, f"{side}_positions": positions}


def windows(tokenizer, texts, source):
    ids = [tokenizer.encode_with_specials(text) for text in texts]
    tokens = np.zeros((len(ids), max(map(len, ids))), np.int32)
    for row, one in zip(tokens, ids, strict=True):
        row[: len(one)] = one
    lengths, rows = np.asarray([len(one) for one in ids]), np.zeros(len(ids), np.int32)
    return Windows(tokens, lengths, rows, np.zeros(len(ids), np.uint64), np.asarray(source, np.int32))


def encoder_decoder_chunk(tokenizer, raw, inputs, targets, source=(0, 1), width=16):
    input_tokens, encoder = lay("encoder", tokenizer, inputs, width)
    target_tokens, decoder = lay("decoder", tokenizer, targets, width)
    shifted = np.zeros_like(target_tokens)
    shifted[:, 1:] = np.where(decoder["decoder_positions"][:, 1:] > 0, target_tokens[:, :-1], 0)
    batch = {
        **encoder,
        **decoder,
        "encoder_input_tokens": input_tokens,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": target_tokens,
        "decoder_loss_weights": (decoder["decoder_segment_ids"] > 0).astype(np.float32),
        "example_source": decoder["decoder_segment_ids"],
    }
    return Chunk(windows(tokenizer, raw, source), batch)


def encoder_chunk(tokenizer, raw, inputs, targets, selected, width=16):
    input_tokens, encoder = lay("encoder", tokenizer, inputs, width)
    target_tokens, _ = lay("encoder", tokenizer, targets, width)
    weights = np.zeros((1, width), np.float32)
    weights[0, selected] = 1
    batch = {
        **encoder,
        "encoder_input_tokens": input_tokens,
        "encoder_target_tokens": target_tokens,
        "encoder_loss_weights": weights,
        "example_source": np.zeros_like(input_tokens),
    }
    return Chunk(windows(tokenizer, raw, [0] * len(raw)), batch)


def decoder_chunk(tokenizer, raw, rows, scored, prefix, width=16):
    """`scored` and `prefix`: the positions of the row."""
    target_tokens, decoder = lay("decoder", tokenizer, rows, width)
    weights, bidirectional = np.zeros((1, width), np.float32), np.zeros((1, width), bool)
    weights[0, scored], bidirectional[0, prefix] = 1, True
    shifted = np.zeros_like(target_tokens)
    shifted[:, 1:] = np.where(decoder["decoder_positions"][:, 1:] > 0, target_tokens[:, :-1], 0)
    batch = {
        **decoder,
        "decoder_input_tokens": shifted,
        "decoder_target_tokens": target_tokens,
        "decoder_loss_weights": weights,
        "decoder_bidirectional_mask": bidirectional,
        "example_source": np.zeros_like(target_tokens),
    }
    return Chunk(windows(tokenizer, raw, [0] * len(raw)), batch)


@pytest.fixture(scope="module")
def ul2():
    return tiny_experiment("ul2", "encoder_decoder")


@pytest.fixture(scope="module")
def two_examples(ul2):
    """An R example and an S example in one row."""
    return encoder_decoder_chunk(
        ul2.tokenizer,
        raw=["ab\ncd", "x\tyz"],
        inputs=["[R]a<extra_id_0>d</s>", "[S]x</s>"],
        targets=["<extra_id_0>b\nc</s>", "\tyz</s>"],
    )


def page(rows, counts=None, denoisers=()):
    counts = counts or {"r": {"corrupted": Count(0.6, 0.15, 0.0), "spans": Count(1.0, None, 0.0)}}
    return Page("a title", [("rows", "2")], [], list(denoisers), rows, counts, "1 row", [])


def printed(shown, width=60, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False, **options)
    print_page(shown, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_page_in_plain_text(ul2, two_examples):
    rows = rows_of(ul2, two_examples, 33, np.asarray([0, 1]), 1)
    denoiser = DenoiserFacts("r", "[R]", 1.0, "5 tokens", "SpanCorruption", "noise_density 0.15")
    assert printed(page(rows, denoisers=[denoiser])) == [
        "a title",
        "rows  2",
        "",
        "denoiser  mode   share  window    what it does",
        "r         [R]   100.0%  5 tokens  SpanCorruption",
        "                                  noise_density 0.15",
        "",
        "legend: ⟦scored⟧  <extra_id_0> sentinel  [R] mode token",
        "        </s> end of text  ↵ newline  ░ read  █ scored",
        "        · padding",
        "",
        "batch 1, row 1: 2 examples ─────────────────────────────────",
        " encoder │░░░░░│░░········│ 8 of 16, 8 padding",
        " decoder │█████│███·······│ 9 of 16, 7 padding",
        "",
        "example 1: r [R]  segment 1 of 2",
        "  raw 5 tokens, inputs 5, targets 5, corrupted 3 (60.0%) in",
        "  1 span",
        "     raw │ab↵",
        "         │cd",
        "  inputs │[R]a<extra_id_0>d</s>",
        " targets │⟦<extra_id_0>b↵",
        "         │c</s>⟧",
        "",
        "example 2: s [S]  segment 2 of 2",
        "  raw 4 tokens, inputs 3, targets 4, corrupted 3 (75.0%) in",
        "  1 span",
        "     raw │x⇥   yz",
        "  inputs │[S]x</s>",
        " targets │⟦⇥   yz</s>⟧",
        "",
        "attention of batch 1, row 1",
        "  encoder            decoder            cross-attention",
        "  self-attention     self-attention     16 x 16, 1:1",
        "  16 x 16, 1:1       16 x 16, 1:1       █████···",
        "  █▒▒▒▒···           █▄·······          █████···",
        "  ███▒▒···           ███▄·····          ▀▀▀▀▀▄▄▄",
        "  ▀▀▀▀▀▄▄▄           ▀▀▀▀▀▄···          ·····███",
        "  ·····██▒           ·····██▄·          ·····▀▀▀",
        "                     ·····▀▀▀▀",
        "  down: the position that looks  across: what it sees",
        "  █ seen  ▒ seen, and later  · hidden",
        "",
        "counts over 1 row",
        "denoiser  corrupted  spans",
        "r           ≠ 60.0%    1.0",
        "  asked       15.0%",
        "≠ more than a tenth, and more than rounding explains, away from what was asked",
    ]


def test_colours_underline_what_is_scored(ul2, two_examples):
    rows = rows_of(ul2, two_examples, 0, np.asarray([0]), 1)
    lines = printed(page(rows), force_terminal=True, color_system="standard")
    [targets] = [line for line in lines if "targets" in line and "</s>" not in line and "raw" not in line]
    assert "\x1b[1;4;35m<extra_id_0>\x1b[0m\x1b[4mb\x1b[0m\x1b[2;4m↵" in targets and "⟦" not in targets
    [inputs] = [line for line in lines if "inputs" in line and "│" in line]
    assert "\x1b[1;37;44m[R]\x1b[0ma\x1b[1;35m<extra_id_0>\x1b[0md\x1b[1;32m</s>" in inputs
    assert "  1 more in this row" in "".join(lines)


def test_masked_positions_say_what_is_shown_there():
    mlm = tiny_experiment("mlm", "encoder_only")
    chunk = encoder_chunk(
        mlm.tokenizer,
        raw=["abcdef"],
        inputs=["[CLS]a[MASK]Xdef[SEP]"],
        targets=["[CLS]abcdef[SEP]"],
        selected=[2, 3, 5],  # b masked, c random, e kept
    )
    [row] = rows_of(mlm, chunk, 0, np.asarray([0]), 1)
    raw, inputs, targets = row.examples[0].sections
    assert row.examples[0].facts == (
        "raw 6 tokens, inputs and targets 8, selected 3 (37.5%) in 2 spans: 1 masked, 1 random, 1 kept"
    )
    assert raw == ("raw", [Run("abcdef", "text", False)])
    assert inputs == (
        "inputs",
        [
            Run("[CLS]", "special", False),
            Run("a", "text", False),
            Run("[MASK]", "mask", True),
            Run("X", "random", True),
            Run("d", "text", False),
            Run("e", "kept", True),
            Run("f", "text", False),
            Run("[SEP]", "special", False),
        ],
    )
    assert [(run.text, run.scored) for run in targets.runs] == [
        ("[CLS]", False), ("a", False), ("bc", True), ("d", False), ("e", True), ("f", False), ("[SEP]", False),
    ]  # fmt: skip


def test_a_decoder_alone_shows_what_it_reads_and_what_it_predicts():
    prefix_lm = tiny_experiment("prefix_lm", "decoder_only")
    chunk = decoder_chunk(
        prefix_lm.tokenizer,
        raw=["abcd", "xy"],
        rows=["ab</s>cd</s>", "xy</s>"],
        scored=[3, 4, 5, 6, 7, 8],
        prefix=[0, 1, 2, 3],
    )
    [row] = rows_of(prefix_lm, chunk, 0, np.asarray([0, 1]), 1)
    first, second = row.examples
    assert [title for title, _ in first.sections] == ["raw", "inputs", "targets"]
    assert "".join(run.text for run in first.sections[1].runs) == "ab</s>"
    assert "".join(run.text for run in first.sections[2].runs) == "cd</s>"
    assert first.facts == (
        "raw 4 tokens, inputs 3, targets 3, corrupted 2 (50.0%) in 1 span, the first 4 positions see each other"
    )
    assert second.sections[1] == ("inputs", []) and second.facts.endswith("causal throughout")


def test_fields_that_show_does_not_know_are_shown_as_they_are():
    mlm = tiny_experiment("mlm", "encoder_only")
    chunk = encoder_chunk(mlm.tokenizer, ["ab"], ["[CLS]ab[SEP]"], ["[CLS]ab[SEP]"], [1], width=6)
    types = np.asarray([[0, 0, 1, 1, 7, 7]], np.int32)
    more = {"encoder_token_types": types, "sentence_labels": np.asarray([1], np.int32)}
    [row] = rows_of(mlm, chunk._replace(batch=chunk.batch | more), 0, np.asarray([0]), 1)
    assert row.examples[0].facts.endswith(
        ": 0 masked, 0 random, 1 kept, encoder_token_types 0×2 1×2, sentence_labels 1"
    )


# Counts


def measured(experiment, chunk):
    examples = take_apart(chunk)
    return examples, {name: v.tolist() for name, v in measure(examples, experiment.tokenizer.vocab).items()}


def test_spans_that_gave_way_to_sentinels_are_counted(ul2, two_examples):
    examples, values = measured(ul2, two_examples)
    assert examples.rows.tolist() == [0, 0] and examples.segments.tolist() == [1, 2]
    assert values == {
        "raw": [5, 4],
        "inputs": [5, 3],
        "targets": [5, 4],
        "scored": [5, 4],
        "used": [10, 7],
        "share": [16, 16],
        "hidden": [3, 3],
        "spans": [1, 1],  # the second is one gap without a mark
        "rearranged": [pytest.approx(np.nan, nan_ok=True)] * 2,  # the targets tell a part
    }


@pytest.mark.parametrize(
    ("targets", "rearranged"),
    [
        ("abcd</s>", 0),
        ("<extra_id_0>a<extra_id_1>bcd<extra_id_2></s>", 0),
        ("<extra_id_0>a<extra_id_1>d<extra_id_2>bc</s>", 1),
        ("abc</s>", np.nan),
    ],
)
def test_targets_that_tell_the_text_in_another_order(ul2, targets, rearranged):
    chunk = encoder_decoder_chunk(ul2.tokenizer, ["abcd</s>"], ["</s>"], [targets], source=[0])
    np.testing.assert_array_equal(measured(ul2, chunk)[1]["rearranged"], [rearranged])


@pytest.mark.parametrize(
    ("raw", "inputs", "hidden", "spans"),
    [
        ("abcdef", "a<extra_id_0>d<extra_id_1></s>", 4, 2),
        ("abcdef", "</s>", 6, 1),  # nothing is read
        ("abcdef", "abcdef</s>", 0, 0),
        ("abcdef", "ab<extra_id_0><extra_id_0>ef</s>", 2, 1),  # each token keeps its place
        ("abcdef", "abXdYf</s>", 2, 2),  # tokens replaced
        ("abcdef", "adf</s>", 3, np.nan),  # dropped in two places, without a mark
        ("aaaaaa", "aaa</s>", 3, 1),
        ("abcdef", "cdef</s>", 2, 1),
        ("abcdef", "[MASK]ab[MASK]f</s>", 3, 2),  # a span of no tokens has its mark as well
        ("abcdef", "acbdfe</s>", 4, np.nan),  # a new order
    ],
)
def test_hidden_tokens_and_spans(ul2, raw, inputs, hidden, spans):
    chunk = encoder_decoder_chunk(ul2.tokenizer, [raw], [inputs], ["x</s>"], source=[0])
    _, values = measured(ul2, chunk)
    assert values["hidden"] == [hidden]
    np.testing.assert_array_equal(values["spans"], [spans])


def test_statistics_are_ratios_of_sums_over_all_chunks(ul2):
    totals = Totals(3)
    for raw, inputs in (("abcdefgh", "ab<extra_id_0>gh</s>"), ("ab", "<extra_id_0></s>")):  # 4 of 8, 2 of 2 hidden
        examples = take_apart(encoder_decoder_chunk(ul2.tokenizer, [raw], [inputs], ["x</s>"], source=[0]))
        totals.add(examples.source, measure(examples, ul2.tokenizer.vocab))
    table = beside_asked(totals, ul2)
    r = {name: count.measured for name, count in table["r"].items() if name != "rearranged"}
    assert r == {
        "share": 1.0,
        "corrupted": 0.6,
        "spans": 1.0,
        "span_length": 3.0,
        "inputs": 4.0,
        "targets": 2.0,
        "useful": 12 / 64,
    }
    assert {name: count.asked for name, count in table["r"].items() if count.asked is not None} == {
        "share": 1 / 3,
        "corrupted": 0.3,
        "span_length": 3.0,
    }
    assert table["r"]["corrupted"].is_off and table["r"]["share"].is_off and not table["r"]["span_length"].is_off
    assert np.isnan(table["r"]["rearranged"].measured)
    assert table["s"]["share"].is_off and np.isnan(table["s"]["corrupted"].measured)


def test_what_is_off():
    assert not Count(0.14, 0.15, 0.0).is_off
    assert Count(0.13, 0.15, 0.0).is_off and not Count(0.13, 0.15, 0.02).is_off
    assert not Count(float("nan"), 0.15, 0.0).is_off and not Count(0.5, None, 0.0).is_off
    assert Count(0.006, 0.0, 0.005).is_off and not Count(0.004, 0.0, 0.005).is_off


def test_notes_say_why_spans_are_short_and_that_nothing_is_scored(ul2):
    table = {"x3": {"spans": Count(1.0, None, 0.0), "span_length": Count(22.0, 64.0, 32.0)}}
    chunk = encoder_decoder_chunk(ul2.tokenizer, ["ab"], ["a</s>"], ["b</s>"], source=[0])
    chunk.batch["decoder_loss_weights"][:] = 0
    examples = take_apart(chunk)
    totals = Totals(3)
    totals.add(examples.source, measure(examples, ul2.tokenizer.vocab))
    assert notes(table, totals) == [
        "x3: an example hides 22 tokens, too few for spans of 64: only longer rows hold such spans",
        "1 of 1 examples have nothing that is scored",
    ]


def test_examples_of_every_denoiser_come_first_and_then_a_shared_row():
    source, rows = np.asarray([0, 0, 0, 1, 0, 0, 2]), np.asarray([0, 1, 2, 3, 4, 4, 5])
    assert pick(source, rows, 2).tolist() == [0, 3]
    assert pick(source, rows, 3).tolist() == [0, 3, 6]
    assert pick(source, rows, 5).tolist() == [0, 3, 4, 5, 6]
    assert pick(source, rows, 6).tolist() == [0, 1, 3, 4, 5, 6]
    assert pick(source, rows, 99).tolist() == list(range(7))


# Text


def test_runs_are_split_at_special_tokens_and_where_scoring_changes(ul2):
    ids = ul2.tokenizer.encode_with_specials("[R]ab\u00e9<extra_id_1><extra_id_0></s><unk>")
    scored = np.arange(len(ids)) >= 2
    assert runs(ids, scored, ul2.tokenizer) == [
        Run("[R]", "mode", False),
        Run("a", "text", False),
        Run("b\u00e9", "text", True),
        Run("<extra_id_1>", "sentinel", True),
        Run("<extra_id_0>", "sentinel", True),
        Run("</s>", "eos", True),
        Run("<unk>", "special", True),
    ]
    assert runs(ids[:0], scored[:0], ul2.tokenizer) == []


def test_what_does_not_print_is_made_visible():
    assert visible("a\n\tb\r\x1b[31m\u202ez") == [
        ("a", False), ("↵", True), ("\n", False), ("⇥", True), ("\tb", False),
        ("\\r", True), ("\\x1b", True), ("[31m", False), ("\\u202e", True), ("z", False),
    ]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.builds(Run, st.text("ab \u4e2d", min_size=1, max_size=30), st.just("text"), st.booleans()),
            st.builds(Run, st.just("<extra_id_0>"), st.just("sentinel"), st.booleans()),
        ),
        max_size=8,
    ),
    st.integers(14, 40),
)
def test_lines_keep_every_character_and_break_no_special_token(texts, width):
    lines = styled_lines(texts, width, plain=False)
    assert "".join(line.plain for line in lines) == "".join(run.text for run in texts)
    assert all(line.cell_len <= width for line in lines)
    assert sum(line.plain.count("<extra_id_0>") for line in lines) == sum(run.kind == "sentinel" for run in texts)


def test_lines_in_brackets_where_there_are_no_styles():
    texts = [Run("ab", "text", False), Run("cd\n", "text", True), Run("ef", "text", False), Run("g", "text", True)]
    lines = [line.plain for line in styled_lines(texts, 20, plain=True)]
    assert lines == ["ab⟦cd↵⟧", "ef⟦g⟧"]


# Attention


def test_the_picture_is_of_the_models_mask():
    """Two segments of a decoder's row: a prefix of two positions, then one without."""
    segments = np.asarray([[1, 1, 1, 2, 2, 0]], np.int32)
    prefix = np.asarray([[1, 1, 0, 0, 0, 0]], bool)
    [picture] = pictures({"decoder_segment_ids": segments, "decoder_bidirectional_mask": prefix}, 0)
    h, s, a, p = HIDDEN, SEEN, AHEAD, PADDING
    np.testing.assert_array_equal(
        picture.cells,
        [
            [s, a, h, h, h, p],
            [s, s, h, h, h, p],
            [s, s, s, h, h, p],
            [h, h, h, s, h, p],
            [h, h, h, s, s, p],
            [p, p, p, p, p, p],
        ],
    )
    batch = {"encoder_segment_ids": np.asarray([[1, 2, 2]]), "decoder_segment_ids": np.asarray([[1, 2]])}
    encoder, decoder, cross = pictures(batch, 0)
    np.testing.assert_array_equal(encoder.cells, [[s, h, h], [h, s, a], [h, s, s]])
    np.testing.assert_array_equal(decoder.cells, [[s, h], [h, s]])
    np.testing.assert_array_equal(cross.cells, [[s, h, h], [h, s, s]])


def test_shrinking_keeps_small_segments_and_edges():
    h, s, a, p = HIDDEN, SEEN, AHEAD, PADDING
    cells = np.asarray([[s, h, h, h, p], [h, s, h, h, p], [h, h, s, a, p], [h, h, s, s, p], [p, p, p, p, p]])
    np.testing.assert_array_equal(shrink(cells, 2), [[s, h, p], [h, s, p], [p, p, p]])
    np.testing.assert_array_equal(shrink(cells, 1), cells)
    np.testing.assert_array_equal(shrink(np.asarray([[a, a], [a, s]]), 2), [[a]])


def test_png_holds_the_cells():
    cells = np.asarray([[0, 1, 2], [3, 2, 1]], np.uint8)
    data = png(cells, [(k, k, k, 255) for k in range(4)])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + body)
        chunks[name], at = body, at + 12 + size
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 3, 0, 0, 0)
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, 1, 2, 0, 3, 2, 1])


# HTML


class Checker(HTMLParser):
    """Fails on tags that do not close; collects what is loaded, and the text."""

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


def checked(html):
    """What a page loads, and its text; fails where it is not sound or needs anything from elsewhere."""
    parser = Checker()
    parser.feed(html)
    parser.close()
    assert not parser.open
    assert all(one.startswith("data:image/png;base64,") for one in parser.loaded)
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    return parser


def test_html_is_whole_loads_nothing_and_escapes_text(ul2):
    hostile = "<script>&'\"\nb"
    chunk = encoder_decoder_chunk(
        ul2.tokenizer, [hostile], ["[R]<script><extra_id_0>\nb</s>"], ["<extra_id_0>&'\"</s>"], source=[0], width=40
    )
    rows = rows_of(ul2, chunk, 0, np.asarray([0]), 1)
    shown = page(rows, denoisers=[DenoiserFacts("<d>", "[R]", 1.0, "<w>", "<c>", "<f>")])
    html = html_page(shown)
    parser = checked(html)
    assert "http:" not in html and "https:" not in html
    assert len(parser.loaded) == 3 and "<script>&'\"↵\nb" in parser.text
    assert '<u><wbr><span class="sentinel">&lt;extra_id_0&gt;</span>&amp;&#x27;&quot;' in html
    assert all(f"&lt;{letter}&gt;" in html for letter in "dwcf")
    assert '<td class="n off">≠ 60.0%<small>15.0%</small></td>' in html


def test_every_kind_has_a_style():
    html = html_page(page([]))
    assert all(f".{kind}" in html for kind in itertools.filterfalse("text".__eq__, KINDS))
