"""The picture of who sees whom."""

import struct
import zlib

import numpy as np

from train.show.attention import AHEAD, HIDDEN, PADDING, SEEN, pictures, png, shrink


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


def test_an_encoder_that_reads_in_an_order():
    """UniLM's [CLS] x [SEP] y [SEP]: three positions see each other, two see those and what comes before."""
    batch = {
        "encoder_segment_ids": np.asarray([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]),
        "encoder_attention_order": np.asarray([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 2, 0]]),
    }
    [picture] = pictures(batch, 1)
    drawn = ["".join("·#>_"[cell] for cell in row) for row in picture.cells]
    assert drawn == ["#>>··_", "##>··_", "###··_", "####·_", "#####_", "______"]


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
