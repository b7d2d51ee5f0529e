"""A small vocabulary, random windows and collators, shared by the tests of objectives."""

import json
import pathlib
import string

import numpy as np

from contract.vocab import BLANK, CONTINUATION, NEWLINE, PUNCTUATION, SPACE, STOP, Vocab
from contract.windows import Windows
from objectives import Denoiser, Objective, denoisers_of
from objectives.algebra.sequences import Sequences
from objectives.objective import RowShape
from objectives.rows.collate import Collator
from objectives.rows.window_specs import make_batch_spec

REFERENCE = json.loads(pathlib.Path(__file__).with_name("t5_seqio_vectors.json").read_text())


def vocab(size: int = 400, num_sentinels: int = 100) -> Vocab:
    """ByT5-like ids: pad 0, EOS 1, unk 2, bytes from 3, other special tokens from 259, sentinels from `size` down."""
    modes = (("[R]", 263), ("[S]", 264), ("[X]", 265))
    marks = bytearray(size)
    marks_of_chars = {".!?": STOP, "\n": NEWLINE, "\n\t ": SPACE | BLANK, string.punctuation: PUNCTUATION}
    for chars, mark in marks_of_chars.items():
        for char in chars:
            marks[3 + ord(char)] |= mark
    marks[3 + 0x80 : 3 + 0xC0] = bytes([CONTINUATION] * 64)
    sentinels = tuple(range(size - 1, size - 1 - num_sentinels, -1))
    return Vocab(size, 0, 1, 2, 259, 260, 261, 262, modes, sentinels, 3, 259, bytes(marks), ())


def t5_after_conversion() -> Vocab:
    """Sentinels ascend from id 10, below the ordinary tokens; the other special ids are in another order too."""
    first, shift = vocab(), 150  # ordinary tokens of the first begin at 3
    ids = dict(zip(("pad", "eos", "unk", "mask", "cls", "sep", "bos"), (9, 4, 8, 0, 7, 2, 5), strict=True))
    modes = tuple((name, 120 + k) for k, (name, _) in enumerate(first.modes))
    marks = bytes(3 + shift) + first.marks[first.content_start : first.content_end]
    content = {"content_start": 3 + shift, "content_end": 259 + shift, "marks": marks, "own_names": ()}
    return Vocab(size=len(marks), **ids, modes=modes, sentinel_ids=tuple(range(10, 110)), **content)


def byte_ids(text: str) -> np.ndarray:
    """The UTF-8 bytes of `text` as ids of `vocab`, int32 [L]."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3


def random_keys(n: int, seed: int = 0) -> np.ndarray:
    """Keys of `n` examples, uint64 [n]."""
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def sequence(sequences: Sequences, e: int = 0) -> list[int]:
    """The tokens of sequence `e`, without what follows its end."""
    return sequences.tokens[e, : sequences.lengths[e]].tolist()


def random_windows(rng: np.random.Generator, lengths, row_ids=None, denoiser_ids=None) -> Windows:
    """Windows of random text, padded with 0; by default each in a row of its own, all of denoiser 0."""
    lengths = np.asarray(lengths)
    tokens = rng.integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    tokens[np.arange(lengths.max()) >= lengths[:, None]] = 0
    row_ids = np.arange(len(lengths)) if row_ids is None else np.asarray(row_ids)
    keys = rng.integers(0, 2**63, len(lengths)).astype(np.uint64)
    denoiser_ids = np.zeros(len(lengths), np.int32) if denoiser_ids is None else np.asarray(denoiser_ids)
    return Windows(tokens, lengths, row_ids, keys, denoiser_ids)


def make_collator(
    denoisers: tuple[Denoiser, ...], row_shape: RowShape, vocab: Vocab, *, bidirectional_inputs: bool, **options
) -> Collator:
    """The collator of a table of denoisers. options: those of make_batch_spec."""
    batch_spec, _ = make_batch_spec(denoisers, row_shape, vocab, **options)
    return Collator(tuple(denoisers), batch_spec, row_shape, vocab, bidirectional_inputs)


def collator(
    objective: Objective, architecture, *, inputs=64, targets=64, documents="join", examples_per_row=1, sentinels=100
) -> Collator:
    """The collator of one objective, whose denoiser is named "x"."""
    return make_collator(
        denoisers_of(objective, "x"),
        RowShape(architecture, inputs, targets, examples_per_row),
        vocab(num_sentinels=sentinels),
        documents=documents,
        bidirectional_inputs=True,
    )
