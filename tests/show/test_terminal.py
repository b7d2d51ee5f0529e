"""train.show's page in a terminal, for batches written by hand."""

import io

import numpy as np
import pytest
from rich.console import Console

from show.page import DenoiserFacts
from show.rows import rows_of
from show.terminal import print_page
from tests.show.batches import decoder_chunk, encoder_chunk, page
from tests.train.tiny_experiments import tiny_experiment


def printed(shown, width=60, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False, **options)
    print_page(shown, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_page_in_plain_text(ul2, two_examples):
    rows = rows_of(ul2, two_examples, 33, np.asarray([0, 1]), 1)
    denoiser = DenoiserFacts("r", "[R]", "100.0%", "5 tokens", "SpanCorruption", "noise_density=0.15")
    assert printed(page(rows, denoisers=[denoiser])) == [
        "a title",
        "batch  2",
        "",
        "denoiser  mode   share  window    objective",
        "r         [R]   100.0%  5 tokens  SpanCorruption",
        "                                  noise_density=0.15",
        "",
        "legend: ⟦scored⟧  <extra_id_0> sentinel  [R] mode token",
        "        </s> end of text  ↵ newline  █ scored  ░ not scored",
        "        · padding",
        "",
        "batch 1, row 1: 2 examples ─────────────────────────────────",
        " encoder │░░░░░│░░········│ 8 of 16 positions used",
        " decoder │█████│███·······│ 9 of 16 positions used",
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
        "  rows: queries  columns: keys  █ visible  ▒ visible, after",
        "  the query  · hidden",
        "",
        "statistics of 1 row",
        "denoiser    corrupted  spans",
        "r             ≠ 60.0%    1.0",
        "  expected      15.0%",
        "≠ differs from the expected value by more than a tenth, and",
        "  by more than rounding explains",
    ]


def test_colors_and_underlined_scored_tokens(ul2, two_examples):
    rows = rows_of(ul2, two_examples, 0, np.asarray([0]), 1)
    lines = printed(page(rows), force_terminal=True, color_system="standard")
    [targets] = [line for line in lines if "targets" in line and "</s>" not in line and "raw" not in line]
    assert "\x1b[1;4;35m<extra_id_0>\x1b[0m\x1b[4mb\x1b[0m\x1b[2;4m↵" in targets and "⟦" not in targets
    [inputs] = [line for line in lines if "inputs" in line and "│" in line]
    assert "\x1b[1;37;44m[R]\x1b[0ma\x1b[1;35m<extra_id_0>\x1b[0md\x1b[1;32m</s>" in inputs
    assert "  1 more example in this row" in "".join(lines)


def test_a_terminal_without_colors_gets_plain_text(ul2, two_examples):
    rows = rows_of(ul2, two_examples, 0, np.asarray([0]), 1)
    lines = "\n".join(printed(page(rows), force_terminal=True, color_system="standard", no_color=True))
    assert "⟦" in lines and "█▒▒▒▒" in lines and "\x1b[34m" not in lines


@pytest.mark.parametrize("width", [10, 8, 1])  # the width of the titles of texts, that of the legend's, and below both
def test_a_terminal_without_space_next_to_titles_gets_a_character_in_a_line(ul2, two_examples, width):
    rows = rows_of(ul2, two_examples, 0, np.asarray([0]), 1)
    lines = printed(page(rows), width=width)
    of_texts = [line.replace(" ", "") for line in lines if "│" in line][2:]  # without the positions of both stacks
    assert of_texts[:5] == ["raw│a", "│b", "│↵", "│c", "│d"]


def marked(runs):
    """The runs in brackets, with the kind of each that is not text, and "!" where scored."""
    return "".join(f"({'' if run.kind == 'text' else run.kind + ' '}{run.text}{'!' * run.scored})" for run in runs)


def test_selected_positions_are_of_three_kinds():
    mlm = tiny_experiment("mlm", "encoder_only")
    chunk = encoder_chunk(
        mlm.tokenizer,
        raw=["abcdef"],
        inputs=["[CLS]a[MASK]Xdef[SEP]"],
        targets=["[CLS]abcdef[SEP]"],
        selected=[2, 3, 5],  # b masked, c random, e kept
    )
    [row] = rows_of(mlm, chunk, 0, np.asarray([0]), 1)
    [example] = row.examples
    assert example.facts == (
        "raw 6 tokens, inputs and targets 8, selected 3 (37.5%) in 2 spans: 1 masked, 1 random, 1 kept"
    )
    assert [(section.title, marked(section.runs)) for section in example.sections] == [
        ("raw", "(abcdef)"),
        ("inputs", "(special [CLS])(a)(mask [MASK]!)(random X!)(d)(kept e!)(f)(special [SEP])"),
        ("targets", "(special [CLS])(a)(bc!)(d)(e!)(f)(special [SEP])"),
    ]


def test_inputs_and_targets_of_a_decoder():
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
        "raw 4 tokens, inputs 3, targets 3, corrupted 2 (50.0%) in 1 span, bidirectional prefix of 4 positions"
    )
    assert second.sections[1] == ("inputs", []) and second.facts.endswith(", causal")


def test_sentence_types_and_labels_without_names():
    mlm = tiny_experiment("mlm", "encoder_only")
    chunk = encoder_chunk(mlm.tokenizer, ["ab"], ["[CLS]ab[SEP]"], ["[CLS]ab[SEP]"], [1], width=6)
    types = np.asarray([[0, 0, 0, 1, 7, 7]], np.int32)
    more = {"encoder_token_types": types, "sentence_labels": np.asarray([1], np.int32)}
    [row] = rows_of(mlm, chunk._replace(batch=chunk.batch | more), 0, np.asarray([0]), 1)
    assert row.examples[0].facts.endswith(": 0 masked, 0 random, 1 kept, sentence A 3 positions, B 1, label 1")
