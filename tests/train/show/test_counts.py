"""train.show's counts against values worked out by hand."""

import numpy as np
import pytest

from tests.train.show.batches import encoder_decoder_chunk
from tests.train.tiny_experiments import tiny_experiment
from train.show.counts import Count, Totals, beside_expected, measure, notes
from train.show.examples import take_apart
from train.show.page import pick


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
        "share": [17.5, 14.5],  # half of the 15 that are empty falls to each
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
        totals.add(examples.denoiser_ids, measure(examples, ul2.tokenizer.vocab))
    table = beside_expected(totals, ul2, np.full(3, 1 / 3))
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
    assert {name: count.expected for name, count in table["r"].items() if count.expected is not None} == {
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
    totals.add(examples.denoiser_ids, measure(examples, ul2.tokenizer.vocab))
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
