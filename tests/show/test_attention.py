"""Attention masks as cells."""

import numpy as np

from show.attention import FUTURE, HIDDEN, PADDING, VISIBLE, pictures, shrink


def test_pictures_have_the_masks_of_the_models():
    """Two segments of a decoder's row: the first with a prefix of two positions, the second without."""
    segments = np.asarray([[1, 1, 1, 2, 2, 0]], np.int32)
    prefix = np.asarray([[1, 1, 0, 0, 0, 0]], bool)
    [picture] = pictures({"decoder_segment_ids": segments, "decoder_bidirectional_mask": prefix}, 0)
    h, v, f, p = HIDDEN, VISIBLE, FUTURE, PADDING
    np.testing.assert_array_equal(
        picture.cells,
        [
            [v, f, h, h, h, p],
            [v, v, h, h, h, p],
            [v, v, v, h, h, p],
            [h, h, h, v, h, p],
            [h, h, h, v, v, p],
            [p, p, p, p, p, p],
        ],
    )
    batch = {"encoder_segment_ids": np.asarray([[1, 2, 2]]), "decoder_segment_ids": np.asarray([[1, 2]])}
    encoder, decoder, cross = pictures(batch, 0)
    np.testing.assert_array_equal(encoder.cells, [[v, h, h], [h, v, f], [h, v, v]])
    np.testing.assert_array_equal(decoder.cells, [[v, h], [h, v]])
    np.testing.assert_array_equal(cross.cells, [[v, h, h], [h, v, v]])


def test_an_annealed_prefix_is_open_as_in_the_model():
    batch = {
        "decoder_segment_ids": np.ones((2, 6), np.int32),
        "decoder_bidirectional_mask": np.ones((2, 6), bool),
        "decoder_annealing_key": np.full(2, 7, np.uint32),
        "decoder_annealing_share": np.array([0.0, 0.0], np.float32),
    }
    [picture] = pictures(batch, 0)
    assert not (picture.cells == FUTURE).any() and (picture.cells[np.tril_indices(6)] == VISIBLE).all()
    [picture] = pictures(batch | {"decoder_annealing_share": np.full(2, 0.5, np.float32)}, 1)
    assert 0 < (picture.cells == FUTURE).sum() < 15


def test_the_attention_order_of_an_encoder():
    """UniLM's [CLS] x [SEP] y [SEP]: the first three positions see each other, the last two see all before them."""
    batch = {
        "encoder_segment_ids": np.asarray([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]),
        "encoder_attention_order": np.asarray([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 2, 0]]),
    }
    [picture] = pictures(batch, 1)
    drawn = ["".join("·#>_"[cell] for cell in row) for row in picture.cells]
    assert drawn == ["#>>··_", "##>··_", "###··_", "####·_", "#####_", "______"]


def test_shrinking_keeps_small_segments_and_edges():
    h, v, f, p = HIDDEN, VISIBLE, FUTURE, PADDING
    cells = np.asarray([[v, h, h, h, p], [h, v, h, h, p], [h, h, v, f, p], [h, h, v, v, p], [p, p, p, p, p]])
    np.testing.assert_array_equal(shrink(cells, 2), [[v, h, p], [h, v, p], [p, p, p]])
    np.testing.assert_array_equal(shrink(cells, 1), cells)
    np.testing.assert_array_equal(shrink(np.asarray([[f, f], [f, v]]), 2), [[f]])
