"""The batch's checker: the packed row of the module's docstring, and one violation of each rule."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from contract.batch import FIELDS, check_batch, in_place

ROW = {
    "decoder_target_tokens": [5, 6, 7, 1, 8, 9, 1, 0, 0, 0],
    "decoder_input_tokens": [0, 5, 6, 7, 0, 8, 9, 0, 0, 0],
    "decoder_loss_weights": [0, 0, 1, 1, 0, 1, 1, 0, 0, 0],
    "decoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0, 0, 0],
    "decoder_positions": [0, 1, 2, 3, 0, 1, 2, 0, 0, 0],
    "decoder_bidirectional_mask": [1, 1, 1, 0, 1, 1, 0, 0, 0, 0],
    "example_source": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0],
}


def batch(**changes):
    return {name: np.array([row], FIELDS["decoder_only"][name]) for name, row in (ROW | changes).items()}


def test_the_packed_row_is_a_batch():
    check_batch(batch(), "decoder_only")
    check_batch(batch() | {"sentence_labels": np.zeros(1, np.int32)}, "decoder_only")
    counted = np.array([[0, 0, 1, 1, 0, 1, 1, 0, 0, 0]], np.float32)
    check_batch(batch() | {"decoder_loss_denominators": counted}, "decoder_only")
    with pytest.raises(ValueError, match="decoder_loss_denominators must be 0 on padding"):
        check_batch(batch() | {"decoder_loss_denominators": np.ones((1, 10), np.float32)}, "decoder_only")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder_positions": np.zeros((1, 10), np.int32)}, r"fields \['encoder_positions'\] are missing or unknown"),
        ({"sentence_labels": np.zeros(2, np.int32)}, r"fields have different numbers of rows: \[1, 2\]"),
        ({"sentence_labels": np.zeros((1, 1), np.int32)}, r"sentence_labels is int32\[1, 1\], not int32\[B\]"),
        ({"example_source": np.zeros((1, 10))}, r"example_source is float64\[1, 10\], not int32\[B, L\]"),
        (
            batch(decoder_segment_ids=[1, 1, 1, 1, 0, 2, 2, 0, 0, 0]),
            "decoder_segment_ids must not decrease along a row",
        ),
        (batch(decoder_positions=[0, 1, 2, 3, 4, 5, 6, 0, 0, 0]), "decoder_positions must restart at 0 with each segm"),
        (batch(decoder_positions=[0, 1, 2, 3, 0, 1, 2, 3, 0, 0]), "decoder_positions must .* and be 0 on padding"),
        (batch(decoder_loss_weights=[0, 0, 1, 1, 0, 1, 1, 1, 0, 0]), "decoder_loss_weights must be 0 on padding"),
        (batch(decoder_input_tokens=[0, 5, 6, 6, 0, 8, 9, 0, 0, 0]), "are not decoder_target_tokens shifted right"),
    ],
)
def test_violations(changed, message):
    with pytest.raises(ValueError, match=message):
        check_batch(batch() | changed, "decoder_only")


def test_the_targets_of_an_encoder_decoder_may_begin_within_the_text():
    fields = {name: row for name, row in batch(decoder_positions=[3, 4, 5, 6, 1, 2, 3, 0, 0, 0]).items()}
    del fields["decoder_bidirectional_mask"]
    fields |= {f"encoder_{name}": fields[f"decoder_{name}"] * 0 for name in ("input_tokens", "positions")}
    fields["encoder_segment_ids"] = fields["decoder_segment_ids"]
    check_batch(fields, "encoder_decoder")
    with pytest.raises(ValueError, match="encoder_positions must restart at 0"):
        check_batch(fields | {"encoder_positions": fields["decoder_positions"]}, "encoder_decoder")


def test_a_causal_segment_may_read_one_token_in_place_of_all_scored_targets():
    """4 is no target. The first scored target is predicted from the prompt, the others where 4 hides those before."""
    hidden = batch(
        decoder_target_tokens=[5, 6, 7, 7, 1, 8, 9, 1, 0, 0],
        decoder_input_tokens=[0, 5, 6, 4, 4, 0, 8, 9, 0, 0],
        decoder_loss_weights=[0, 0, 1, 1, 1, 0, 1, 1, 0, 0],
        decoder_segment_ids=[1, 1, 1, 1, 1, 2, 2, 2, 0, 0],
        decoder_positions=[0, 1, 2, 3, 4, 0, 1, 2, 0, 0],
        decoder_bidirectional_mask=[0] * 10,
    )
    check_batch(hidden, "decoder_only")
    assert in_place(hidden).tolist() == [[True] * 5 + [False] * 5]
    for place, token in ((2, 4), (3, 7), (3, 3)):  # the prompt is hidden, a target is shown, two tokens hide targets
        changed = hidden["decoder_input_tokens"].copy()
        changed[0, place] = token
        with pytest.raises(ValueError, match="are not decoder_target_tokens shifted right"):
            check_batch(hidden | {"decoder_input_tokens": changed}, "decoder_only")


def test_a_causal_segment_may_read_the_mask_token_in_place_of_some_targets():
    """The mask, 4, hides the 6 of the first segment. Its text may have the mask itself, as the second's does."""
    hidden = batch(
        decoder_target_tokens=[5, 6, 7, 7, 1, 8, 4, 1, 0, 0],
        decoder_input_tokens=[0, 5, 4, 7, 7, 0, 8, 4, 0, 0],
        decoder_loss_weights=[1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
        decoder_segment_ids=[1, 1, 1, 1, 1, 2, 2, 2, 0, 0],
        decoder_positions=[0, 1, 2, 3, 4, 0, 1, 2, 0, 0],
        decoder_bidirectional_mask=[0] * 10,
    )
    check_batch(hidden, "decoder_only", mask=4)
    assert in_place(hidden, mask=4).tolist() == [[True] * 5 + [False] * 5]
    unscored = hidden["decoder_loss_weights"].copy()
    unscored[0, 1] = 0
    for fields, mask in ((hidden, -1), (hidden, 3), (hidden | {"decoder_loss_weights": unscored}, 4)):
        with pytest.raises(ValueError, match="are not decoder_target_tokens shifted right"):
            check_batch(fields, "decoder_only", mask=mask)


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 9))
def test_segments_in_place_are_those_that_a_loop_over_segments_finds(seed, rows, length):
    draws = np.random.default_rng(seed)
    segment_ids = np.sort(draws.integers(0, 4, (rows, length)), axis=1)[:, ::-1]
    segment_ids = np.where(segment_ids, segment_ids.max(axis=1, keepdims=True) + 1 - segment_ids, 0)  # padding last
    found = batch() | {
        "decoder_segment_ids": segment_ids,
        "decoder_bidirectional_mask": draws.random((rows, length)) < 0.8,
        "decoder_loss_weights": (draws.random((rows, length)) < 0.6) * (segment_ids > 0),
        "decoder_input_tokens": draws.integers(3, 5, (rows, length)),
        "decoder_target_tokens": draws.integers(3, 6, (rows, length)),
    }
    expected = np.zeros((rows, length), bool)
    for row in range(rows):
        for segment in set(segment_ids[row]) - {0}:
            at = np.flatnonzero(segment_ids[row] == segment)
            read, targets, weights = (
                found[f"decoder_{name}"][row, at] for name in ("input_tokens", "target_tokens", "loss_weights")
            )
            hides = read[1:][weights[:-1] > 0]
            one_token = len(set(hides)) == 1 and hides[0] not in targets
            expected[row, at] = one_token or found["decoder_bidirectional_mask"][row, at].all()
    assert (in_place(found) == expected).all()


def test_encoder_fields_are_checked_too():
    fields = {name: np.zeros((1, 4), dtype) for name, dtype in FIELDS["encoder_only"].items()}
    check_batch(fields, "encoder_only")
    fields["encoder_loss_weights"][0, 3] = 1
    with pytest.raises(ValueError, match="encoder_loss_weights must be 0 on padding"):
        check_batch(fields, "encoder_only")
