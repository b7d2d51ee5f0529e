"""Tokens as runs of text, and runs as styled text."""

import numpy as np

from show.rows import Run, runs, split_marks
from show.terminal import styled_text


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


def test_characters_that_do_not_print_are_made_visible():
    assert split_marks("a\n\tb\r\x1b[31m\u202ez") == [
        ("a", False), ("↵", True), ("\n", False), ("⇥", True), ("\t", False), ("b", False),
        ("\\r", True), ("\\x1b", True), ("[31m", False), ("\\u202e", True), ("z", False),
    ]  # fmt: skip


def test_scored_text_is_in_brackets_without_styles():
    texts = [Run("ab", "text", False), Run("cd\n", "text", True), Run("ef", "text", False), Run("g", "text", True)]
    assert styled_text(texts, plain=True).plain == "ab⟦cd↵⟧\nef⟦g⟧"
    assert styled_text(texts, plain=False).plain == "abcd↵\nefg"
