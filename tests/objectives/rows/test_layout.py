import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.batch import check_batch
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Masked
from objectives.rows import layout
from objectives.rows.lengths import RowShape
from tests.objectives.helpers import REFERENCE, vocab


def sequences(lists) -> Sequences:
    lengths = np.asarray([len(one) for one in lists])
    tokens = np.full((len(lists), max(lengths.max(initial=0), 1)), 99, np.int32)  # what stands behind must not show
    for e, one in enumerate(lists):
        tokens[e, : len(one)] = one
    return Sequences(tokens, lengths)


def lay(architecture, inputs, targets, rows, num_rows, shape, **options):
    place = getattr(layout, architecture)
    examples = InputsTargets(sequences(inputs), sequences(targets))
    source = np.arange(len(rows), dtype=np.int32)
    batch = place(examples, np.asarray(rows), source, num_rows, shape, vocab(), **options)
    check_batch(batch, architecture)
    return batch


def test_the_contracts_packed_decoder_only_row():
    shape = RowShape("decoder_only", 10, 0, 2)
    batch = lay("decoder_only", [[5, 6], [8]], [[7, 1], [9, 1]], [0, 0], 1, shape)
    assert {name: array[0].astype(int).tolist() for name, array in batch.items()} == {
        "decoder_target_tokens": [5, 6, 7, 1, 8, 9, 1, 0, 0, 0],
        "decoder_input_tokens": [0, 5, 6, 7, 0, 8, 9, 0, 0, 0],
        "decoder_loss_weights": [0, 0, 1, 1, 0, 1, 1, 0, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0, 0, 0],
        "decoder_positions": [0, 1, 2, 3, 0, 1, 2, 0, 0, 0],
        "decoder_bidirectional_mask": [1, 1, 1, 0, 1, 1, 0, 0, 0, 0],
        "example_source": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0],
    }
    causal = lay("decoder_only", [[5, 6], [8]], [[7, 1], [9, 1]], [0, 0], 1, shape, bidirectional_inputs=False)
    assert not causal["decoder_bidirectional_mask"].any()


def test_an_encoder_that_has_nothing_to_read_reads_eos():
    shape = RowShape("encoder_decoder", 4, 6, 1)
    batch = lay("encoder_decoder", [[], []], [[5, 6, 1], [7]], [0, 0], 1, shape)
    assert batch["encoder_input_tokens"].tolist() == [[1, 1, 0, 0]]
    assert batch["encoder_segment_ids"].tolist() == [[1, 2, 0, 0]]
    assert batch["decoder_input_tokens"].tolist() == [[0, 5, 6, 0, 0, 0]]
    mixed = lay("encoder_decoder", [[9, 8], []], [[5], [7]], [0, 1], 2, shape)
    assert mixed["encoder_input_tokens"].tolist() == [[9, 8, 0, 0], [1, 0, 0, 0]]


def test_mlm_scores_the_selected_whatever_the_inputs_show():
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
def test_seqio_converters_segment_by_segment(case):
    """seqio 0.0.20's own rows: every field that it has is equal in ours."""
    lengths = case["task_feature_lengths"]
    architecture = "encoder_decoder" if case["converter"] == "encoder_decoder" else "decoder_only"
    if architecture == "encoder_decoder":
        shape = RowShape(architecture, lengths["inputs"], lengths["targets"], 1)
    else:
        shape = RowShape(architecture, lengths.get("inputs", 0) + lengths["targets"], 0, 1)
    inputs = [example.get("inputs", []) for example in case["examples"]]
    targets = [example["targets"] for example in case["examples"]]
    # Which of seqio's rows each example is in: it fills them in order.
    segments = [max(row.get("decoder_segment_ids", [1])) for row in case["features"]]
    rows = np.repeat(np.arange(len(segments)), segments)
    batch = lay(architecture, inputs, targets, rows, len(segments), shape)
    for r, row in enumerate(case["features"]):
        for name, values in row.items():
            ours = batch[SEQIO_NAMES.get(name, name)][r].astype(int).tolist()
            if name == "decoder_input_tokens" and not case["pack"]:
                # seqio shifts the padding too: its unpacked rows read the last target once more, on a padded position.
                keep = int(batch["decoder_segment_ids"][r].astype(bool).sum())
                ours, values = ours[:keep], values[:keep]
            assert ours == values, name


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_packing_gives_back_its_examples(data):
    n = data.draw(st.integers(1, 6))
    some = st.lists(st.integers(3, 258), max_size=5)
    inputs = [data.draw(some) for _ in range(n)]
    targets = [[*data.draw(some), 1] for _ in range(n)]
    rows = sorted(data.draw(st.integers(0, 2)) for _ in range(n))
    for architecture in ("encoder_decoder", "decoder_only"):
        batch = lay(architecture, inputs, targets, rows, 3, RowShape(architecture, 72, 72, 6))
        seen = 0
        for row in range(3):
            segments = batch["decoder_segment_ids"][row]
            for segment in range(1, segments.max(initial=0) + 1):
                inside = segments == segment
                tokens = batch["decoder_target_tokens"][row][inside].tolist()
                scored = batch["decoder_loss_weights"][row][inside].astype(bool)
                if architecture == "decoder_only":
                    assert tokens == inputs[seen] + targets[seen]
                    assert scored.tolist() == [False] * len(inputs[seen]) + [True] * len(targets[seen])
                else:
                    read = batch["encoder_input_tokens"][row][batch["encoder_segment_ids"][row] == segment]
                    assert tokens == targets[seen] and read.tolist() == (inputs[seen] or [1])
                assert (batch["example_source"][row][inside] == seen).all()
                seen += 1
        assert seen == n


def test_examples_that_do_not_fit_are_never_cut():
    with pytest.raises(ValueError, match="examples of 6 tokens in rows of 5"):
        lay("decoder_only", [[3, 4, 5]], [[6, 7, 1]], [0], 1, RowShape("decoder_only", 5, 0, 1))
