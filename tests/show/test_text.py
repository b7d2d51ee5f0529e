"""Tokens as runs of text, and runs as lines."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from command.program import plural
from show.rows import Run, abbreviate, runs, visible
from show.terminal import styled_lines


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


def test_scored_text_is_in_brackets_without_styles():
    texts = [Run("ab", "text", False), Run("cd\n", "text", True), Run("ef", "text", False), Run("g", "text", True)]
    lines = [line.plain for line in styled_lines(texts, 20, plain=True)]
    assert lines == ["ab⟦cd↵⟧", "ef⟦g⟧"]


def test_abbreviated_numbers():
    assert abbreviate([0] * 84 + list(range(1, 45))) == "0×84 1..44"
    assert abbreviate([3, 3, 5, 6, 2]) == "3×2 5 6 2"
    assert abbreviate([5, 4, 3, 3, 9]) == "5..3 3 9"
    assert abbreviate([7]) == "7" and abbreviate([]) == ""
    assert (plural(1, "row"), plural(2, "row"), plural(0, "row")) == ("1 row", "2 rows", "0 rows")
