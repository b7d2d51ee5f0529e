"""A small vocabulary and ways to read batches, shared by the tests of objectives."""

import json
import pathlib
import string

import numpy as np

from contract.vocab import BLANK, CONTINUATION, NEWLINE, PUNCTUATION, SPACE, STOP, Vocab
from contract.windows import Windows
from objectives import denoisers_of
from objectives.rows.collate import Collator
from objectives.rows.lengths import RowShape
from objectives.rows.window_specs import make_batch_spec

REFERENCE = json.loads(pathlib.Path(__file__).with_name("t5_seqio_vectors.json").read_text())


def vocab(size: int = 400, num_sentinels: int = 100) -> Vocab:
    """ByT5-like ids: pad 0, EOS 1, unk 2, bytes from 3, then specials, sentinels from the top down."""
    modes = (("[R]", 263), ("[S]", 264), ("[X]", 265))
    marks = bytearray(size)
    kinds = {".!?": STOP, "\n": NEWLINE, "\n\t ": SPACE | BLANK, string.punctuation: PUNCTUATION}
    for text, mark in kinds.items():
        for char in text:
            marks[3 + ord(char)] |= mark
    marks[3 + 0x80 : 3 + 0xC0] = bytes([CONTINUATION] * 64)
    return Vocab(size, 0, 1, 2, 259, 260, 261, 262, modes, num_sentinels, 3, 259, bytes(marks))


def sequence(sequences, e: int = 0) -> list[int]:
    return sequences.tokens[e, : sequences.lengths[e]].tolist()


def random_windows(rng: np.random.Generator, lengths, rows=None, source=None) -> Windows:
    lengths = np.asarray(lengths)
    tokens = rng.integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    tokens[np.arange(lengths.max()) >= lengths[:, None]] = 0
    rows = np.arange(len(lengths)) if rows is None else np.asarray(rows)
    keys = rng.integers(0, 2**63, len(lengths)).astype(np.uint64)
    source = np.zeros(len(lengths), np.int32) if source is None else np.asarray(source)
    return Windows(tokens, lengths, rows, keys, source)


def make_collator(denoisers, row_shape, vocab, *, bidirectional_inputs, **options):
    """The collator of a table of denoisers, and the warnings to print."""
    batch_spec, warnings = make_batch_spec(denoisers, row_shape, vocab, **options)
    return Collator(tuple(denoisers), batch_spec, row_shape, vocab, bidirectional_inputs), warnings


def collator(objective, architecture, *, inputs=64, targets=64, documents="join", per_row=1, sentinels=100, name="x"):
    made, _ = make_collator(
        denoisers_of(objective, name),
        RowShape(architecture, inputs, targets, per_row),
        vocab(num_sentinels=sentinels),
        documents=documents,
        bidirectional_inputs=True,
    )
    return made


def rebuild(inputs: list[int], targets: list[int], vocab: Vocab) -> list[int]:
    """The raw text from the inputs and targets of a denoiser, both without EOS and mode token."""
    sentinels = {int(s) for s in vocab.sentinels}
    spans, current = {}, None
    for token in targets:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    text = [t for token in inputs for t in (spans.pop(token) if token in sentinels else [token])]
    assert not spans, "targets tell of spans that the inputs do not have"
    return text
