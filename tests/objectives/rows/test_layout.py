"""Layouts: the rows of each architecture, against hand-written rows and against seqio's feature converters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.batch import check_batch
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Masked, RowShape
from objectives.rows import layout
from tests.contract.test_batch import ROW as PACKED_ROW
from tests.objectives.helpers import REFERENCE, vocab


def sequences(lists) -> Sequences:
    lengths = np.asarray([len(tokens) for tokens in lists])
    padded = np.full((len(lists), max(lengths.max(initial=0), 1)), 99, np.int32)  # 99 must not appear in a batch
    for e, tokens in enumerate(lists):
        padded[e, : len(tokens)] = tokens
    return Sequences(padded, lengths)


def lay_out(architecture, inputs, targets, row_ids, num_rows, shape, **options):
    """A batch of examples, each with a denoiser id of its own."""
    place = getattr(layout, architecture)
    examples = InputsTargets(sequences(inputs), sequences(targets))
    denoiser_ids = np.arange(len(row_ids), dtype=np.int32)
    batch = place(examples, np.asarray(row_ids), denoiser_ids, num_rows, shape, vocab(), **options)
    check_batch(batch, architecture)
    return batch


def test_a_packed_decoder_only_row_is_the_example_of_the_batch_contract():
    shape = RowShape("decoder_only", 10, 0, 2)
    batch = lay_out("decoder_only", [[5, 6], [8]], [[7, 1], [9, 1]], [0, 0], 1, shape)
    assert {name: array[0].astype(int).tolist() for name, array in batch.items()} == PACKED_ROW
    causal = lay_out("decoder_only", [[5, 6], [8]], [[7, 1], [9, 1]], [0, 0], 1, shape, bidirectional_inputs=False)
    assert not causal["decoder_bidirectional_mask"].any()


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_targets_with_weights_are_read_as_before_and_scored_by_weight(architecture):
    """Two examples in a row: 5 6 -> 7 8 1, of which 7 is not scored and 8 counts half, and 9 -> 4 1, without the 1."""
    place, where = getattr(layout, architecture), (np.zeros(2, int), np.arange(2, dtype=np.int32), 1)
    examples = InputsTargets(sequences([[5, 6], [9]]), sequences([[7, 8, 1], [4, 1]]))
    shape = RowShape(architecture, 10, 6, 2)
    weighted = examples._replace(weights=np.asarray([[0, 0.5, 1], [1, 0, 99]], np.float32))  # 99 is after the end
    expected, found = (place(of, *where, shape, vocab()) for of in (examples, weighted))
    check_batch(found, architecture)
    rows = {"decoder_only": [0, 0, 0, 0.5, 1, 0, 1, 0, 0, 0], "encoder_decoder": [0, 0.5, 1, 1, 0, 0]}
    targets = {"decoder_only": [5, 6, 7, 8, 1, 9, 4, 1, 0, 0], "encoder_decoder": [7, 8, 1, 4, 1, 0]}
    assert found["decoder_loss_weights"].tolist() == [rows[architecture]]
    assert found["decoder_target_tokens"].tolist() == [targets[architecture]]
    assert found.pop("decoder_loss_weights").dtype == expected.pop("decoder_loss_weights").dtype
    for name in expected.keys() | (found.keys() - {"decoder_positions"}):
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_an_encoder_without_inputs_reads_eos():
    shape = RowShape("encoder_decoder", 4, 6, 1)
    batch = lay_out("encoder_decoder", [[], []], [[5, 6, 1], [7]], [0, 0], 1, shape)
    assert batch["encoder_input_tokens"].tolist() == [[1, 1, 0, 0]]
    assert batch["encoder_segment_ids"].tolist() == [[1, 2, 0, 0]]
    assert batch["decoder_input_tokens"].tolist() == [[0, 5, 6, 0, 0, 0]]
    mixed = lay_out("encoder_decoder", [[9, 8], []], [[5], [7]], [0, 1], 2, shape)
    assert mixed["encoder_input_tokens"].tolist() == [[9, 8, 0, 0], [1, 0, 0, 0]]


def test_an_encoder_only_row_scores_exactly_the_selected_positions():
    examples = Masked(sequences([[4, 259, 6]]), np.asarray([[4, 5, 6]], np.int32), np.asarray([[True, True, False]]))
    batch = layout.encoder_only(
        examples, np.zeros(1, int), np.zeros(1, np.int32), 1, RowShape("encoder_only", 5, 0, 1), vocab()
    )
    check_batch(batch, "encoder_only")
    assert batch["encoder_input_tokens"].tolist() == [[4, 259, 6, 0, 0]]
    assert batch["encoder_target_tokens"].tolist() == [[4, 5, 6, 0, 0]]
    assert batch["encoder_loss_weights"].tolist() == [[1, 1, 0, 0, 0]]


SEQIO_NAMES = {"decoder_causal_attention": "decoder_bidirectional_mask"}


@pytest.mark.parametrize("case", REFERENCE["feature_converters"], ids=lambda c: f"{c['converter']}-{c['pack']}")
def test_rows_equal_those_of_seqios_feature_converters(case):
    """In every field of the rows that seqio 0.0.20 makes."""
    lengths = case["task_feature_lengths"]
    architecture = "encoder_decoder" if case["converter"] == "encoder_decoder" else "decoder_only"
    if architecture == "encoder_decoder":
        shape = RowShape(architecture, lengths["inputs"], lengths["targets"], 1)
    else:
        shape = RowShape(architecture, lengths.get("inputs", 0) + lengths["targets"], 0, 1)
    inputs = [example.get("inputs", []) for example in case["examples"]]
    targets = [example["targets"] for example in case["examples"]]
    # seqio fills rows in the order of the examples, so the number of segments gives the row of each example.
    num_segments = [max(row.get("decoder_segment_ids", [1])) for row in case["features"]]
    row_ids = np.repeat(np.arange(len(num_segments)), num_segments)
    batch = lay_out(architecture, inputs, targets, row_ids, len(num_segments), shape)
    for r, row in enumerate(case["features"]):
        for name, values in row.items():
            actual = batch[SEQIO_NAMES.get(name, name)][r].astype(int).tolist()
            if name == "decoder_input_tokens" and not case["pack"]:
                # seqio shifts the padding too, so its unpacked rows repeat the last target on a padded position.
                num_used = int(batch["decoder_segment_ids"][r].astype(bool).sum())
                actual, values = actual[:num_used], values[:num_used]
            assert actual == values, name


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_example_of_packed_rows_is_a_segment_in_order(data):
    n = data.draw(st.integers(1, 6))
    text = st.lists(st.integers(3, 258), max_size=5)
    inputs = [data.draw(text) for _ in range(n)]
    targets = [[*data.draw(text), 1] for _ in range(n)]
    row_ids = sorted(data.draw(st.integers(0, 2)) for _ in range(n))
    for architecture in ("encoder_decoder", "decoder_only"):
        batch = lay_out(architecture, inputs, targets, row_ids, 3, RowShape(architecture, 72, 72, 6))
        e = 0
        for row in range(3):
            segments = batch["decoder_segment_ids"][row]
            for segment in range(1, segments.max(initial=0) + 1):
                inside = segments == segment
                tokens = batch["decoder_target_tokens"][row][inside].tolist()
                scored = batch["decoder_loss_weights"][row][inside].astype(bool)
                if architecture == "decoder_only":
                    assert tokens == inputs[e] + targets[e]
                    assert scored.tolist() == [False] * len(inputs[e]) + [True] * len(targets[e])
                else:
                    encoder_inputs = batch["encoder_input_tokens"][row][batch["encoder_segment_ids"][row] == segment]
                    assert tokens == targets[e] and encoder_inputs.tolist() == (inputs[e] or [1])
                assert (batch["example_source"][row][inside] == e).all()
                e += 1
        assert e == n


def test_examples_longer_than_their_row_raise():
    with pytest.raises(ValueError, match="examples of 6 tokens in rows of 5"):
        lay_out("decoder_only", [[3, 4, 5]], [[6, 7, 1]], [0], 1, RowShape("decoder_only", 5, 0, 1))
